package kvevent

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// envelopeOf encodes an envelope with the given payload.
func envelopeOf(t *testing.T, payload any) []byte {
	t.Helper()
	return wire(t, dict{"publisher_id", 5, "sequence", 6, "published_at", 7, "topic", Topic, "payload", wire(t, payload)})
}

// clearedBy is the encoded cleared event id of worker 7, with more pairs at the
// end.
func clearedBy(id int, more ...any) dict {
	return append(dict{"worker_id", 7, "storage_tier", "device", "event", dict{"event_id", id, "data", "cleared", "dp_rank", 2}}, more...)
}

// sample has every kind of event, owner and tier.
func sample() Envelope {
	worker := kv.WorkerOwner(kv.Worker{ID: math.MaxUint64, Rank: 3})
	return Envelope{
		PublisherID: 1<<53 - 1, Sequence: 1 << 40, PublishedAt: 1, Topic: Topic,
		Events: []RouterEvent{
			{Owner: worker, Tier: kv.TierDevice, ID: 1, Kind: Stored, Blocks: []StoredBlock{{1, 2}, {math.MaxUint64, 1 << 63}}},
			{Owner: worker, Tier: kv.TierHost, ID: 2, Kind: Stored, Parent: 9, HasParent: true, StartPosition: 70000, HasStart: true},
			{Owner: kv.PoolOwner(12), Tier: kv.TierDisk, ID: 3, Kind: Removed, Removed: []kv.SequenceHash{1, 200, 1 << 20}},
			{Owner: kv.PoolOwner(12), Tier: kv.TierExternal, ID: 4, Kind: Stored, HasParent: true, HasStart: true, Blocks: []StoredBlock{{3, 4}}},
			{Owner: worker, Tier: kv.TierDevice, ID: 5, Kind: Stored, Group: 1, Blocks: []StoredBlock{{Hash: 5}, {Hash: math.MaxUint64}}},
			{Owner: kv.PoolOwner(12), Tier: kv.TierHost, ID: 6, Kind: Removed, Group: 63, Removed: []kv.SequenceHash{7, 1 << 40}},
			{Owner: kv.PoolOwner(12), ID: math.MaxUint64, Kind: Cleared},
		},
	}
}

func TestEnvelopeSurvivesEncoding(t *testing.T) {
	want := sample()
	var d EnvelopeDecoder
	var got Envelope
	if err := d.Decode(AppendEnvelope(nil, &want), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, visible); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if d.Skipped != 0 || d.Bad != 0 {
		t.Errorf("skipped %d, bad %d", d.Skipped, d.Bad)
	}
}

func TestPayloadHeaderIsTheShortestForEverySize(t *testing.T) {
	for _, blocks := range []int{0, 1, 3, 4, 5, 1000, 3000, 8192} {
		want := Envelope{Topic: Topic, Events: []RouterEvent{{ID: 1, Kind: Removed, Removed: make([]kv.SequenceHash, blocks)}}}
		for i := range want.Events[0].Removed {
			want.Events[0].Removed[i] = math.MaxUint64
		}
		prefix := []byte("kept")
		b := AppendEnvelope(prefix, &want)
		payload := appendRouterEvents(nil, want.Events)
		if !bytes.HasPrefix(b, prefix) || !bytes.HasSuffix(b, append(wire(t, "payload"), wire(t, payload)...)) {
			t.Errorf("%d blocks: the payload of %d bytes is not the last value", blocks, len(payload))
		}
		var got Envelope
		if err := new(EnvelopeDecoder).Decode(b[len(prefix):], &got); err != nil {
			t.Errorf("%d blocks: %v", blocks, err)
		}
		if diff := cmp.Diff(want, got, visible); diff != "" {
			t.Errorf("%d blocks: (-want +got)\n%s", blocks, diff)
		}
	}
}

func TestOwnerKindIsTheLastKeyAndForPoolsOnly(t *testing.T) {
	pool := appendRouterEvent(nil, &RouterEvent{Owner: kv.Owner{Kind: kv.OwnerPool, ID: 7, Rank: 9}, ID: 1, Kind: Cleared})
	want := wire(t, dict{
		"worker_id", 7, "storage_tier", "device", "event", dict{"event_id", 1, "data", "cleared", "dp_rank", 0}, "owner_kind", "pool",
	})
	if !bytes.Equal(pool, want) {
		t.Errorf("pool: got  %x\nwant %x", pool, want)
	}
	worker := appendRouterEvent(nil, &RouterEvent{Owner: kv.Owner{ID: 7, Rank: 2}, ID: 1, Kind: Cleared})
	if want := wire(t, clearedBy(1)); !bytes.Equal(worker, want) {
		t.Errorf("worker: got  %x\nwant %x", worker, want)
	}
}

func TestForeignEventsAreSkippedAndCounted(t *testing.T) {
	var d EnvelopeDecoder
	var e Envelope
	if err := d.Decode(envelopeOf(t, list{
		clearedBy(1),
		clearedBy(2, "residency_domain", "worker"),
		clearedBy(3, "residency_domain", nil),
		clearedBy(4, "residency_domain", "moon"),
		clearedBy(5, "owner_kind", "worker"),
		clearedBy(6, "owner_kind", "satellite"),
		clearedBy(7, "state_source", dict{"x", 1}),
	}), &e); err != nil {
		t.Fatal(err)
	}
	var ids []uint64
	for _, ev := range e.Events {
		ids = append(ids, ev.ID)
	}
	if diff := cmp.Diff([]uint64{1, 2, 5, 7}, ids); diff != "" || d.Skipped != 3 || d.Bad != 0 {
		t.Errorf("skipped %d, bad %d, ids (-want +got)\n%s", d.Skipped, d.Bad, diff)
	}
}

func TestBadRouterEventsAreLeftOutAndCounted(t *testing.T) {
	change := func(data any) dict { return dict{"worker_id", 7, "event", dict{"event_id", 1, "data", data}} }
	block := dict{"block_hash", 1, "tokens_hash", 2, "mm_extra_info", dict{"mm_objects", list{}}}
	for name, bad := range map[string]any{
		"no event":          dict{"worker_id", 7},
		"no worker":         dict{"event", dict{"event_id", 1, "data", "cleared"}},
		"no id":             dict{"worker_id", 7, "event", dict{"data", "cleared"}},
		"no data":           dict{"worker_id", 7, "event", dict{"event_id", 1}},
		"negative worker":   dict{"worker_id", -7, "event", dict{"event_id", 1, "data", "cleared"}},
		"unknown tier":      append(clearedBy(1), "storage_tier", "tape"),
		"tier is nil":       append(clearedBy(1), "storage_tier", nil),
		"owner kind nil":    clearedBy(1, "owner_kind", nil),
		"an array":          list{7, "device"},
		"unknown change":    change("renamed"),
		"unknown change 2":  change(dict{"renamed", dict{}}),
		"two changes":       change(dict{"removed", dict{}, "stored", dict{}}),
		"no change":         change(dict{}),
		"change of nil":     change(nil),
		"block no hash":     change(dict{"stored", dict{"blocks", list{block, dict{"tokens_hash", 1}}}}),
		"block no tokens":   change(dict{"stored", dict{"blocks", list{dict{"block_hash", 1}}}}),
		"block no map":      change(dict{"stored", dict{"blocks", list{1}}}),
		"parent is text":    change(dict{"stored", dict{"parent_hash", "a", "blocks", list{}}}),
		"start too large":   change(dict{"stored", dict{"start_position", 1 << 32, "blocks", list{}}}),
		"removed is signed": change(dict{"removed", dict{"block_hashes", list{-1}}}),
	} {
		var d EnvelopeDecoder
		var e Envelope
		good := change(dict{"stored", dict{"blocks", list{block}, "x", 1}})
		if err := d.Decode(envelopeOf(t, list{good, bad, good}), &e); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(e.Events) != 2 || d.Bad != 1 || d.Skipped != 0 {
			t.Errorf("%s: %d events, bad %d, skipped %d", name, len(e.Events), d.Bad, d.Skipped)
		}
		for _, ev := range e.Events {
			if len(ev.Blocks) != 1 || ev.Blocks[0] != (StoredBlock{1, 2}) {
				t.Errorf("%s: blocks of a good event: %v", name, ev.Blocks)
			}
		}
	}
}

func TestDamagedEnvelopeIsAnErrorAndHoldsNothing(t *testing.T) {
	whole := AppendEnvelope(nil, &Envelope{Events: sample().Events})
	head := dict{"publisher_id", 5, "sequence", 6, "topic", Topic}
	for name, b := range map[string][]byte{
		"nothing":             {},
		"an array":            wire(t, list{1}),
		"no payload":          wire(t, head),
		"payload is text":     wire(t, append(head[:len(head):len(head)], "payload", "x")),
		"payload is a number": envelopeOf(t, 7),
		"payload and more":    wire(t, append(head[:len(head):len(head)], "payload", append(wire(t, list{}), 0))),
		"no publisher":        wire(t, dict{"sequence", 6, "topic", Topic, "payload", wire(t, list{})}),
		"another topic":       wire(t, dict{"publisher_id", 5, "sequence", 6, "topic", "kv_metrics", "payload", wire(t, dict{})}),
		"trailing byte":       append(whole[:len(whole):len(whole)], 0),
	} {
		e := sample()
		if err := new(EnvelopeDecoder).Decode(b, &e); err == nil {
			t.Errorf("%s: no error", name)
		}
		if len(e.Events) != 0 || e.PublisherID != 0 {
			t.Errorf("%s: holds %+v", name, e)
		}
	}
	for n := range whole {
		var e Envelope
		if err := new(EnvelopeDecoder).Decode(whole[:n], &e); err == nil {
			t.Errorf("no error for the first %d bytes of %d", n, len(whole))
		}
	}
}

func TestTheLastChangeOfAnEventCounts(t *testing.T) {
	first := dict{"stored", dict{"parent_hash", 3, "start_position", 4, "blocks", list{dict{"block_hash", 1, "tokens_hash", 2}}}}
	second := dict{"removed", dict{"block_hashes", list{8}}}
	var e Envelope
	event := dict{"worker_id", 7, "event", dict{"event_id", 1, "data", first, "data", second}}
	if err := new(EnvelopeDecoder).Decode(envelopeOf(t, event), &e); err != nil {
		t.Fatal(err)
	}
	want := []RouterEvent{{Owner: kv.Owner{ID: 7}, ID: 1, Kind: Removed, Removed: []kv.SequenceHash{8}}}
	if diff := cmp.Diff(want, e.Events, visible); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestErrorsQuoteAndCutWhatTheyFound(t *testing.T) {
	b := wire(t, dict{strings.Repeat("k", 10000) + "\x00", 1})
	b[len(b)-1] = 0xc1
	var e Envelope
	err := new(EnvelopeDecoder).Decode(b, &e)
	if err == nil || len(err.Error()) > 200 {
		t.Errorf("error of %d bytes", len(err.Error()))
	}
}

func TestDecodedEnvelopesDoNotShareMemory(t *testing.T) {
	want := sample()
	b := AppendEnvelope(nil, &want)
	var d EnvelopeDecoder
	var first, second Envelope
	for _, e := range []*Envelope{&first, &second} {
		if err := d.Decode(b, e); err != nil {
			t.Fatal(err)
		}
	}
	clear(b)
	second.Events[0].Blocks[0].Hash = 77
	second.Events[2].Removed[0] = 77
	if diff := cmp.Diff(want, first, visible); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestEncodingAnEventWithoutKindIsABug(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	AppendEnvelope(nil, &Envelope{Events: make([]RouterEvent, 1)})
}
