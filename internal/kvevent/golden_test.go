package kvevent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

const (
	h1 = 0x1122334455667788
	h2 = 0x99aabbccddeeff00
	ts = 1700000000.5
)

// visible compares exported fields; nil and empty slices are equal.
var visible = cmp.Options{
	cmpopts.IgnoreUnexported(Envelope{}),
	cmpopts.EquateEmpty(),
	cmpopts.EquateErrors(),
}

// goldenStored is the event of R1, E1 and E2.
var goldenStored = RouterEvent{
	Owner: kv.WorkerOwner(kv.Worker{ID: 7}), ID: 1, Kind: Stored,
	Blocks: []StoredBlock{{Hash: h1, Local: 0xcb38e4d7fb2dca5c}},
}

func TestRouterEventsOfEveryVersionAreRead(t *testing.T) {
	removed := RouterEvent{Owner: goldenStored.Owner, ID: 2, Kind: Removed, Removed: []kv.SequenceHash{h1}}
	cleared := RouterEvent{Owner: goldenStored.Owner, ID: 3, Kind: Cleared}
	vectors := golden(t)
	for name, want := range map[string]RouterEvent{
		"R0": goldenStored, "R1": goldenStored, "R2": removed, "R3": cleared,
	} {
		c := msgpack.NewReader(vectors[name])
		got, err := decodeRouterEvent(c, new(routerMemory))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got, visible); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	for name, e := range map[string]RouterEvent{"R1": goldenStored, "R3": cleared} {
		if got := appendRouterEvent(nil, &e); string(got) != string(vectors[name]) {
			t.Errorf("%s encoded: got  %x\nwant %x", name, got, vectors[name])
		}
	}
}

func TestEnvelopesOfEveryVersionAreReadAndEncodedAsTheLatest(t *testing.T) {
	want := Envelope{
		PublisherID: 0x0123456789abcd, PublishedAt: 1700000000500, Topic: Topic, Events: []RouterEvent{goldenStored},
	}
	vectors := golden(t)
	for _, name := range []string{"E1", "E2"} {
		var d EnvelopeDecoder
		var got Envelope
		if err := d.Decode(vectors[name], &got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got, visible); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	for _, topic := range []string{Topic, ""} {
		want.Topic = topic
		if got := AppendEnvelope(nil, &want); string(got) != string(vectors["E2"]) {
			t.Errorf("topic %q: got  %x\nwant %x", topic, got, vectors["E2"])
		}
	}
}

// TestGroupEventsAreEmptyEventsToEarlierReaders: an earlier reader must neither credit the blocks of
// a group nor find a gap in the ids, so that what it reads is an event without blocks.
func TestGroupEventsAreEmptyEventsToEarlierReaders(t *testing.T) {
	vectors := golden(t)
	owner := goldenStored.Owner
	for name, want := range map[string]RouterEvent{
		"G1": {Owner: owner, ID: 4, Kind: Stored, Group: 1, Blocks: []StoredBlock{{Hash: h1}, {Hash: h2}}},
		"G2": {Owner: owner, ID: 5, Kind: Removed, Group: 1, Removed: []kv.SequenceHash{h2}},
	} {
		got, err := decodeRouterEvent(msgpack.NewReader(vectors[name]), new(routerMemory))
		if diff := cmp.Diff(want, got, visible); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
		if encoded := appendRouterEvent(nil, &want); string(encoded) != string(vectors[name]) {
			t.Errorf("%s encoded: got  %x\nwant %x", name, encoded, vectors[name])
		}
		earlier := strings.NewReplacer("\xa5group\x01", "\xa5grouq\x01", "\xacgroup_hashes", "\xacgrouq_hashes").Replace(string(vectors[name]))
		got, err = decodeRouterEvent(msgpack.NewReader([]byte(earlier)), new(routerMemory))
		if err != nil || got.NumBlocks() != 0 || got.Group != 0 || got.ID != want.ID || got.Kind != want.Kind {
			t.Errorf("%s without its new keys: %+v, %v; want the same event without blocks", name, got, err)
		}
	}
}

func TestGroupEventsOfMixedFormsAreRefused(t *testing.T) {
	for name, data := range map[string]dict{
		"no hashes":   {"stored", dict{"parent_hash", nil, "blocks", list{}, "group", 1}},
		"no group":    {"stored", dict{"parent_hash", nil, "blocks", list{}, "group_hashes", list{5}}},
		"a parent":    {"stored", dict{"parent_hash", 7, "blocks", list{}, "group", 1, "group_hashes", list{5}}},
		"too high":    {"removed", dict{"block_hashes", list{}, "group", 64, "group_hashes", list{5}}},
		"both":        {"removed", dict{"block_hashes", list{6}, "group", 1, "group_hashes", list{5}}},
		"both stored": {"stored", dict{"blocks", list{dict{"block_hash", 1, "tokens_hash", 2}}, "group", 1, "group_hashes", list{5}}},
	} {
		b := wire(t, dict{"worker_id", 7, "storage_tier", "device", "event", dict{"event_id", 1, "data", data, "dp_rank", 0}})
		if e, err := decodeRouterEvent(msgpack.NewReader(b), new(routerMemory)); err == nil {
			t.Errorf("%s: read %+v, want an error", name, e)
		}
	}
}
