package kvevent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/recordedtest"
)

// TestDynamoEnvelopesAreDecodedAndEncodedToTheSameBytes also checks that the
// event plane's other messages are refused. Dynamo's own workers clear no more than
// what is theirs.
func TestDynamoEnvelopesAreDecodedAndEncodedToTheSameBytes(t *testing.T) {
	envelopes, events, others := 0, 0, 0
	var d EnvelopeDecoder
	var e Envelope
	for _, name := range recordedtest.DynamoFiles() {
		for _, l := range recordedtest.ReadDynamo(t, name) {
			if l.Kind != "nats" {
				continue
			}
			body := recordedtest.Unhex(t, l.Hex)
			err := d.Decode(body, &e)
			if !strings.HasSuffix(l.Subject, ".kv-events") {
				if err == nil {
					t.Errorf("%s: a message of %s was taken for KV events", name, l.Subject)
				}
				others++
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			want := envelopeFromJSON(t, l.Decoded)
			if diff := cmp.Diff(want, &e, visible); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", name, diff)
			}
			if got := AppendDynamoEnvelope(nil, &e, ClearWorker); string(got) != string(body) {
				t.Errorf("%s: got  %x\nwant %x", name, got, body)
			}
			envelopes++
			events += len(e.Events)
		}
	}
	if d.Bad+d.Skipped > 0 {
		t.Errorf("bad %d, skipped %d", d.Bad, d.Skipped)
	}
	recordedtest.Report(t, "decoded and re-encoded %d Dynamo envelopes with %d events; refused %d other messages", envelopes, events, others)
}

func envelopeFromJSON(t *testing.T, raw []byte) *Envelope {
	t.Helper()
	var v struct {
		PublisherID uint64 `json:"publisher_id"`
		Sequence    uint64
		PublishedAt uint64 `json:"published_at"`
		Topic       string
		Payload     struct{ Decoded []dynamoEvent }
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	e := &Envelope{PublisherID: v.PublisherID, Sequence: v.Sequence, PublishedAt: v.PublishedAt, Topic: v.Topic}
	for _, ev := range v.Payload.Decoded {
		e.Events = append(e.Events, ev.routerEvent(t))
	}
	return e
}

type dynamoEvent struct {
	WorkerID    uint64 `json:"worker_id"`
	StorageTier string `json:"storage_tier"`
	Event       struct {
		EventID uint64 `json:"event_id"`
		Rank    uint32 `json:"dp_rank"`
		Data    json.RawMessage
	}
}

func (d *dynamoEvent) routerEvent(t *testing.T) RouterEvent {
	t.Helper()
	tier, err := kv.ParseTier(d.StorageTier)
	if err != nil {
		t.Fatal(err)
	}
	e := RouterEvent{
		Owner: kv.Owner{ID: d.WorkerID, Rank: kv.DPRank(d.Event.Rank)}, Tier: tier, ID: d.Event.EventID, Kind: Cleared,
	}
	if string(d.Event.Data) == `"cleared"` {
		return e
	}
	var data struct {
		Stored *struct {
			Parent *kv.SequenceHash `json:"parent_hash"`
			Start  *uint32          `json:"start_position"`
			Blocks []struct {
				Hash  kv.SequenceHash `json:"block_hash"`
				Local kv.LocalHash    `json:"tokens_hash"`
			}
		}
		Removed *struct {
			Hashes []kv.SequenceHash `json:"block_hashes"`
		}
	}
	if err := json.Unmarshal(d.Event.Data, &data); err != nil {
		t.Fatal(err)
	}
	if data.Removed != nil {
		e.Kind, e.Removed = Removed, data.Removed.Hashes
		return e
	}
	e.Kind = Stored
	if data.Stored.Parent != nil {
		e.Parent, e.HasParent = *data.Stored.Parent, true
	}
	if data.Stored.Start != nil {
		e.StartPosition, e.HasStart = *data.Stored.Start, true
	}
	for _, b := range data.Stored.Blocks {
		e.Blocks = append(e.Blocks, StoredBlock{b.Hash, b.Local})
	}
	return e
}
