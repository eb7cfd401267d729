package engineevent

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	h1 = 0x1122334455667788
	h2 = 0x99aabbccddeeff00
	ts = 1700000000.5
)

// visible compares exported fields; nil and empty slices are equal.
var visible = cmp.Options{cmpopts.IgnoreUnexported(Batch{}, kvevent.Envelope{}), cmpopts.EquateEmpty(), cmpopts.EquateErrors()}

func hashes(h ...kv.EngineHash) []kv.EngineHash { return h }

// stored is a stored event of block h1 with tokens 1 to 4, changed by each of
// the changes.
func stored(changes ...func(*Event)) Event {
	e := Event{
		Kind: kvevent.Stored, BlockHashes: hashes(h1), Tokens: []uint32{1, 2, 3, 4}, BlockSize: 4, Medium: "GPU", Group: NoGroup,
	}
	for _, change := range changes {
		change(&e)
	}
	return e
}

func TestDecodeReadsEveryEngineEncoding(t *testing.T) {
	ranked := func(rank kv.DPRank, events ...Event) Batch {
		return Batch{Timestamp: ts, Rank: rank, HasRank: true, Events: events}
	}
	group0 := func(e *Event) { e.Group = 0 }
	noMedium := func(e *Event) { e.Medium = "" }
	fullAttention := func(e *Event) { e.Group, e.SpecKind = 0, "full_attention" }
	signed := func(e *Event) { e.BlockHashes = hashes(h2) }
	removed := Event{Kind: kvevent.Removed, BlockHashes: hashes(h1), Medium: "GPU", Group: 0}
	cleared := Event{Kind: kvevent.Cleared, Group: NoGroup}
	want := map[string]Batch{
		"V0":  {Timestamp: ts, Events: []Event{stored(noMedium)}},
		"V2":  ranked(0, stored()),
		"V2b": ranked(0, stored(func(e *Event) { e.BlockHashes = hashes(0x18191a1b1c1d1e1f) })),
		"V3": ranked(0, stored(func(e *Event) {
			e.BlockHashes, e.Tokens = hashes(h1, h2), []uint32{1, 2, 3, 4, 5, 6, 7, 8}
		})),
		"V4": ranked(1, stored(func(e *Event) {
			e.BlockHashes, e.Parent, e.HasParent = hashes(h2), h1, true
			e.Tokens, e.LoRAName, e.LoRAID = []uint32{5, 6, 7, 8}, "adapter-a", 7
		})),
		"V5": ranked(0, stored(group0), removed, cleared),
		"V6": ranked(0, stored(fullAttention)),
		"V7": ranked(0, stored(fullAttention), removed, cleared),
		"T1": ranked(0, stored(signed, noMedium)),
		"T2": ranked(0, Event{Kind: kvevent.Removed, BlockHashes: hashes(h1), Group: NoGroup}),
		"S1": ranked(0, stored(signed)),
		"C0": ranked(0, stored(func(e *Event) { e.Tokens = []uint32{10, 20, 30, 40} })),
		"C1": ranked(0,
			stored(noMedium, func(e *Event) {
				e.BlockHashes, e.Tokens = hashes(3114443937531979), []uint32{10, 20, 30, 40}
			}),
			stored(noMedium, func(e *Event) {
				e.BlockHashes, e.Tokens = hashes(5370979798324801), []uint32{50, 60, 70, 80}
				e.Parent, e.HasParent = 3114443937531979, true
			})),
	}
	vectors := golden(t)
	var d Decoder
	var got Batch
	for name, want := range want {
		if err := d.Decode(vectors[name], &got); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want, got, visible); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

func TestEngineBatchIsEncodedAsVLLMDoes(t *testing.T) {
	want := golden(t)["V7"]
	var b Batch
	if err := new(Decoder).Decode(want, &b); err != nil {
		t.Fatal(err)
	}
	if got := AppendBatch(nil, &b); string(got) != string(want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}
