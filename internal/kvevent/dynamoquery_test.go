package kvevent

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/recordedtest"
)

func TestDynamoQueriesOfEveryVersionAreRead(t *testing.T) {
	full := DynamoQuery{Worker: kv.Worker{ID: 7}, Kind: DynamoRecovery}
	ranged := full
	ranged.QueryRequest = QueryRequest{StartID: 3, HasStart: true, EndID: 9, HasEnd: true}
	ranged.Worker.Rank = 2
	ranged.KnowsDumpFailed = true
	status := full
	status.Kind = "?"
	for name, tc := range map[string]struct {
		request dict
		want    DynamoQuery
	}{
		"without a rank":     {dict{"worker_id", 7}, full},
		"all of it":          {dict{"worker_id", 7, "dp_rank", 0, "start_event_id", nil, "end_event_id", nil}, full},
		"a range":            {dict{"worker_id", 7, "dp_rank", 2, "start_event_id", 3, "end_event_id", 9, "supports_tree_dump_failed", true, "kind", "recovery"}, ranged},
		"a kind with fields": {dict{"worker_id", 7, "kind", dict{"status", dict{}}, "more", list{}}, status},
	} {
		if got, err := DecodeDynamoQuery(wire(t, tc.request)); err != nil || got != tc.want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, tc.want)
		}
	}
	for name, bad := range map[string]any{
		"no worker": dict{"dp_rank", 0}, "text": dict{"worker_id", "7"}, "no map": list{7},
		"rank too high": dict{"worker_id", 7, "dp_rank", uint64(1) << 32},
	} {
		if q, err := DecodeDynamoQuery(wire(t, bad)); err == nil {
			t.Errorf("%s: %+v", name, q)
		}
	}
}

func TestDynamoRepliesHaveTheirVariantsForm(t *testing.T) {
	q := &DynamoQuery{QueryRequest: QueryRequest{StartID: 9, HasStart: true}}
	item := func(data any) []byte { return wire(t, dict{"data", data, "complete_final", false}) }
	for kind, want := range map[QueryKind][]byte{
		QueryEvents:       item(dict{"Events", dict{"events", list{}, "last_event_id", 10}}),
		QueryTreeDump:     item(dict{"TreeDump", dict{"events", list{}, "last_event_id", 10, "reset_scope", "all"}}),
		QueryDumpFailed:   item(dict{"TreeDumpFailed", dict{"last_event_id", 10, "message", "m"}}),
		QueryTooNew:       item(dict{"TooNew", dict{"requested_start", 9, "requested_end", nil, "newest_available", 10}}),
		QueryInvalidRange: item(dict{"InvalidRange", dict{"start_id", 9, "end_id", 0}}),
		QueryError:        item(dict{"Error", "m"}),
	} {
		r := &QueryReply{Kind: kind, LastEventID: 10, Message: "m"}
		if got := AppendDynamoReply(nil, q, r); !bytes.Equal(got, want) {
			t.Errorf("%s: got %x, want %x", kind, got, want)
		}
	}
	if got := AppendDynamoFinal(nil); !bytes.Equal(got, wire(t, dict{"complete_final", true})) {
		t.Errorf("final: %x", got)
	}
}

// TestDynamoRecoveryIsReproduced makes the recorded answer from what it says, and
// reads the recorded query.
func TestDynamoRecoveryIsReproduced(t *testing.T) {
	dumps := 0
	for _, l := range recordedtest.ReadDynamo(t, "recovery-query.jsonl") {
		switch {
		case l.What == "request":
			q, err := DecodeDynamoQuery(queryOf(t, recordedtest.Unhex(t, l.Hex)))
			if err != nil || q.HasStart || q.HasEnd || !q.KnowsDumpFailed || q.Kind != DynamoRecovery {
				t.Errorf("%+v, %v", q, err)
			}
		case strings.Contains(l.What, "TreeDump"):
			item := recordedtest.Unhex(t, l.Hex)[24:]
			r := dumpOf(t, item)
			if got := AppendDynamoReply(nil, &DynamoQuery{}, &r); !bytes.Equal(got, item) {
				t.Errorf("got  %x\nwant %x", got, item)
			}
			dumps++
		}
	}
	if dumps != 1 {
		t.Errorf("%d dumps in the recording", dumps)
	}
}

// queryOf is the msgpack body of a request frame.
func queryOf(t *testing.T, b []byte) []byte {
	t.Helper()
	for range 2 {
		b = b[2+binary.BigEndian.Uint16(b):]
	}
	b = b[4:]
	head := binary.BigEndian.Uint64(b)
	return b[24+head:]
}

// dumpOf reads a dump, whose events become those of an envelope to be decoded.
func dumpOf(t *testing.T, item []byte) QueryReply {
	t.Helper()
	marker := append(msgp.AppendString(nil, "events"), 0x92)
	from := bytes.Index(item, marker) + len(marker) - 1
	rest := item[from:]
	rest, err := msgp.Skip(rest)
	if err != nil {
		t.Fatal(err)
	}
	events := item[from : len(item)-len(rest)]
	var e Envelope
	body := wire(t, dict{"publisher_id", 1, "sequence", 0, "published_at", 0, "topic", Topic, "payload", events})
	if err := new(EnvelopeDecoder).Decode(body, &e); err != nil {
		t.Fatal(err)
	}
	return QueryReply{Kind: QueryTreeDump, LastEventID: 2, Events: e.Events}
}
