package kvevent

import (
	"math"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
	"github.com/blockyard-ai/blockyard/internal/recordedtest"
)

// usedLoad is a load of which only the used blocks are known, as an engine without
// its own accounting reports it.
func usedLoad(worker kv.WorkerID, used uint64) ActiveLoad {
	return ActiveLoad{Worker: kv.Worker{ID: worker}, KVUsedBlocks: used, HasKVUsedBlocks: true}
}

// TestActiveLoadIsWrittenAsDynamoWritesIt freezes the bytes.
func TestActiveLoadIsWrittenAsDynamoWritesIt(t *testing.T) {
	const want = "85a9776f726b65725f696407a764705f72616e6b00b46163746976655f6465636f64655f626c6f636b73c0b561637469" +
		"76655f70726566696c6c5f746f6b656e73c0ae6b765f757365645f626c6f636b73cd0384"
	l := usedLoad(7, 900)
	if got := AppendActiveLoad(nil, &l); string(got) != string(recordedtest.Unhex(t, want)) {
		t.Errorf("got %x", got)
	}
}

func TestActiveLoadSurvivesItsEnvelope(t *testing.T) {
	for _, want := range []ActiveLoad{
		{},
		usedLoad(math.MaxUint64, 0),
		{
			Worker:             kv.Worker{ID: 1, Rank: math.MaxUint32},
			ActiveDecodeBlocks: 1, HasActiveDecodeBlocks: true,
			ActivePrefillTokens: math.MaxUint64, HasActivePrefillTokens: true,
		},
	} {
		got, err := DecodeLoadEnvelope(AppendLoadEnvelope(nil, 3, 4, 5, &want))
		if err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestLoadEnvelopesOfDynamoAreReproduced(t *testing.T) {
	n := 0
	for _, l := range recordedtest.ReadDynamo(t, "other-subjects.jsonl") {
		if l.Kind != "nats" || !strings.HasSuffix(l.Subject, "."+LoadTopic) {
			continue
		}
		body := recordedtest.Unhex(t, l.Hex)
		load, err := DecodeLoadEnvelope(body)
		if err != nil || !load.HasKVUsedBlocks || load.HasActiveDecodeBlocks {
			t.Fatalf("%+v, %v", load, err)
		}
		var head struct{ publisher, sequence, at uint64 }
		c := msgpack.NewReader(body)
		c.Map()
		for _, v := range []*uint64{&head.publisher, &head.sequence, &head.at} {
			c.Text()
			*v = c.Uint64()
		}
		if got := AppendLoadEnvelope(nil, head.publisher, head.sequence, head.at, &load); string(got) != string(body) {
			t.Errorf("got  %x\nwant %x", got, body)
		}
		n++
	}
	if n == 0 {
		t.Error("no load in the recording")
	}
	recordedtest.Report(t, "re-encoded %d load messages of Dynamo", n)
}

func TestBadLoadsAreRefused(t *testing.T) {
	good := wire(t, dict{"worker_id", 1, "kv_used_blocks", 2, "more", list{1}})
	if l, err := DecodeActiveLoad(good); err != nil || l != usedLoad(1, 2) {
		t.Errorf("%+v, %v", l, err)
	}
	for name, b := range map[string][]byte{
		"no worker":     wire(t, dict{"kv_used_blocks", 2}),
		"negative":      wire(t, dict{"worker_id", 1, "kv_used_blocks", -2}),
		"rank too high": wire(t, dict{"worker_id", 1, "dp_rank", uint64(1) << 32}),
		"rest":          append(wire(t, dict{"worker_id", 1}), 1),
		"no map":        wire(t, list{1}),
	} {
		if l, err := DecodeActiveLoad(b); err == nil {
			t.Errorf("%s: %+v", name, l)
		}
	}
	events := sample()
	if _, err := DecodeLoadEnvelope(AppendEnvelope(nil, &events)); err == nil {
		t.Error("KV events were taken for a load")
	}
}
