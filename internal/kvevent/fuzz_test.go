package kvevent

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// addGolden seeds f with the golden vectors and with one of them cut short.
func addGolden(f *testing.F) {
	for _, v := range golden(f) {
		f.Add(v)
		f.Add(v[:len(v)/2])
	}
}

func FuzzEnvelopeDecoder(f *testing.F) {
	addGolden(f)
	e := sample()
	f.Add(AppendEnvelope(nil, &e))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d EnvelopeDecoder
		var first, second Envelope
		if err := d.Decode(b, &first); err != nil {
			return
		}
		d = EnvelopeDecoder{}
		encoded := AppendEnvelope(nil, &first)
		if err := d.Decode(encoded, &second); err != nil || d.Bad+d.Skipped > 0 {
			t.Fatalf("own encoding %x: %v, bad %d, skipped %d", encoded, err, d.Bad, d.Skipped)
		}
		if diff := cmp.Diff(first, second, visible); diff != "" {
			t.Fatalf("decoded twice: (-first +second)\n%s", diff)
		}
	})
}

// fuzzSame checks that what decode reads is read again from what encode makes of it.
func fuzzSame[T comparable](f *testing.F, decode func([]byte) (T, error), encode func([]byte, *T) []byte) {
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := decode(b)
		if err != nil {
			return
		}
		if second, err := decode(encode(nil, &first)); err != nil || second != first {
			t.Fatalf("got %+v, then %+v, %v", first, second, err)
		}
	})
}

func FuzzDecodeAnnouncement(f *testing.F) {
	f.Add(AppendAnnouncement(nil, &sampleAnnouncement))
	addGolden(f)
	fuzzSame(f, DecodeAnnouncement, AppendAnnouncement)
}

func FuzzDecodeAgentStatus(f *testing.F) {
	f.Add(AppendAgentStatus(nil, &sampleStatus))
	addGolden(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var first, second AgentStatus
		if is, err := DecodeAgentStatus(b, &first); err != nil || !is {
			if len(first.Streams) > 0 {
				t.Fatalf("%d streams with %v, %v", len(first.Streams), is, err)
			}
			return
		}
		if is, err := DecodeAgentStatus(AppendAgentStatus(nil, &first), &second); err != nil || !is {
			t.Fatalf("own encoding of %+v: %v, %v", first, is, err)
		}
		if diff := cmp.Diff(first, second, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("decoded twice: (-first +second)\n%s", diff)
		}
	})
}

func FuzzDecodeQueryRequest(f *testing.F) {
	f.Add(AppendQueryRequest(nil, &QueryRequest{}))
	f.Add(AppendQueryRequest(nil, &QueryRequest{MaxChunks: 8, DumpID: 3, FirstChunk: 70}))
	f.Add(AppendQueryRequest(nil, &QueryRequest{StartID: 300, HasStart: true, EndID: 1 << 40, HasEnd: true}))
	fuzzSame(f, DecodeQueryRequest, AppendQueryRequest)
}

func FuzzDecodeNodeClaim(f *testing.F) {
	f.Add(AppendNodeClaim(nil, &NodeClaim{Node: "a", Host: "h", PID: 1}))
	fuzzSame(f, DecodeNodeClaim, AppendNodeClaim)
}

func FuzzDecodeLoadReport(f *testing.F) {
	f.Add(AppendLoadReport(nil, &LoadReport{PublisherID: 1, Owner: kv.PoolOwner(2)}))
	f.Add(AppendLoadReport(nil, &LoadReport{PublisherID: 1, Owner: kv.WorkerOwner(kv.Worker{ID: 2}), Worker: WorkerLoad{1, 2, 3, 4, 5, 6}}))
	fuzzSame(f, DecodeLoadReport, AppendLoadReport)
}

func FuzzDecodeReadAhead(f *testing.F) {
	f.Add(AppendReadAhead(nil, &ReadAhead{Tokens: []uint32{1, 1 << 31}, Salt: "s\n"}))
	f.Add(AppendReadAhead(nil, &ReadAhead{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := DecodeReadAhead(b)
		if err != nil {
			return
		}
		second, err := DecodeReadAhead(AppendReadAhead(nil, &first))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Fatalf("decoded twice: (-first +second)\n%s", diff)
		}
	})
}

func FuzzDecodeQueryReply(f *testing.F) {
	f.Add(AppendQueryReply(nil, &QueryReply{Kind: QueryTreeDump, Final: true, Events: sample().Events}))
	f.Add(AppendQueryReply(nil, &QueryReply{Kind: QueryError, Message: "busy"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := DecodeQueryReply(b)
		if err != nil {
			return
		}
		second, err := DecodeQueryReply(AppendQueryReply(nil, &first))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, second, visible); diff != "" {
			t.Fatalf("decoded twice: (-first +second)\n%s", diff)
		}
	})
}
