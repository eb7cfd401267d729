package kvevent

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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

func FuzzDecodeAnnouncement(f *testing.F) {
	f.Add(AppendAnnouncement(nil, &sampleAnnouncement))
	addGolden(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := DecodeAnnouncement(b)
		if err != nil {
			return
		}
		if second, err := DecodeAnnouncement(AppendAnnouncement(nil, &first)); err != nil || second != first {
			t.Fatalf("got %+v, then %+v, %v", first, second, err)
		}
	})
}

func FuzzDecodeQueryRequest(f *testing.F) {
	f.Add(AppendQueryRequest(nil, &QueryRequest{}))
	f.Add(AppendQueryRequest(nil, &QueryRequest{MaxChunks: 8, DumpID: 3, FirstChunk: 70}))
	f.Add(AppendQueryRequest(nil, &QueryRequest{StartID: 300, HasStart: true, EndID: 1 << 40, HasEnd: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := DecodeQueryRequest(b)
		if err != nil {
			return
		}
		if second, err := DecodeQueryRequest(AppendQueryRequest(nil, &first)); err != nil || second != first {
			t.Fatalf("got %+v, then %+v, %v", first, second, err)
		}
	})
}

func FuzzDecodeNodeClaim(f *testing.F) {
	f.Add(AppendNodeClaim(nil, &NodeClaim{Node: "a", Host: "h", PID: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := DecodeNodeClaim(b)
		if err != nil {
			return
		}
		if second, err := DecodeNodeClaim(AppendNodeClaim(nil, &first)); err != nil || second != first {
			t.Fatalf("got %+v, then %+v, %v", first, second, err)
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
