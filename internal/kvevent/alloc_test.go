package kvevent

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestEnvelopeDecoderAllocatesNothingInSteadyState(t *testing.T) {
	e := sample()
	large := Envelope{Topic: Topic, Events: []RouterEvent{{Owner: kv.PoolOwner(1), ID: 1, Kind: Stored, Blocks: make([]StoredBlock, 1000)}}}
	vectors := golden(t)
	payloads := [][]byte{AppendEnvelope(nil, &e), AppendEnvelope(nil, &large), vectors["E1"], vectors["E2"]}
	var d EnvelopeDecoder
	var got Envelope
	decodeAll := func() {
		for _, p := range payloads {
			if err := d.Decode(p, &got); err != nil {
				t.Fatal(err)
			}
		}
	}
	decodeAll()
	if n := testing.AllocsPerRun(100, decodeAll); n != 0 {
		t.Errorf("%v allocations for %d envelopes", n, len(payloads))
	}
}

func TestEncodersAllocateNothingIntoALargeEnoughBuffer(t *testing.T) {
	envelope := sample()
	buf := make([]byte, 0, 1<<16)
	if n := testing.AllocsPerRun(100, func() {
		AppendEnvelope(buf, &envelope)
		AppendAnnouncement(buf, &sampleAnnouncement)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecodeEnvelope128Blocks(b *testing.B) {
	e := Envelope{Events: []RouterEvent{{Owner: kv.PoolOwner(1), ID: 1, Kind: Stored}}}
	for i := range 128 {
		e.Events[0].Blocks = append(e.Events[0].Blocks, StoredBlock{Hash: kv.SequenceHash(i) << 50, Local: kv.LocalHash(i) << 51})
	}
	payload := AppendEnvelope(nil, &e)
	var d EnvelopeDecoder
	var got Envelope
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	for b.Loop() {
		if err := d.Decode(payload, &got); err != nil {
			b.Fatal(err)
		}
	}
}
