package kvevent

import (
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
