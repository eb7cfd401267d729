package kvevent

import (
	"bufio"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	h1 = 0x1122334455667788
	h2 = 0x99aabbccddeeff00
	ts = 1700000000.5
)

// golden reads testdata/golden.txt.
func golden(tb testing.TB) map[string][]byte {
	tb.Helper()
	f, err := os.Open("testdata/golden.txt")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	vectors := make(map[string][]byte)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, digits, ok := strings.Cut(lines.Text(), " ")
		if !ok || name == "#" {
			continue
		}
		b, err := hex.DecodeString(digits)
		if err != nil {
			tb.Fatalf("vector %s: %v", name, err)
		}
		vectors[name] = b
	}
	if err := lines.Err(); err != nil {
		tb.Fatal(err)
	}
	return vectors
}

// visible compares exported fields; nil and empty slices are equal.
var visible = cmp.Options{
	cmpopts.IgnoreUnexported(EngineBatch{}, Envelope{}),
	cmpopts.EquateEmpty(),
	cmpopts.EquateErrors(),
}

func hashes(h ...kv.EngineHash) []kv.EngineHash { return h }

// stored is a stored event of block h1 with tokens 1 to 4, changed by each of
// the changes.
func stored(changes ...func(*EngineEvent)) EngineEvent {
	e := EngineEvent{
		Kind: Stored, BlockHashes: hashes(h1), Tokens: []uint32{1, 2, 3, 4}, BlockSize: 4, Medium: "GPU", Group: NoGroup,
	}
	for _, change := range changes {
		change(&e)
	}
	return e
}

func TestDecodeReadsEveryEngineEncoding(t *testing.T) {
	ranked := func(rank kv.DPRank, events ...EngineEvent) EngineBatch {
		return EngineBatch{Timestamp: ts, Rank: rank, HasRank: true, Events: events}
	}
	group0 := func(e *EngineEvent) { e.Group = 0 }
	noMedium := func(e *EngineEvent) { e.Medium = "" }
	fullAttention := func(e *EngineEvent) { e.Group, e.SpecKind = 0, "full_attention" }
	signed := func(e *EngineEvent) { e.BlockHashes = hashes(h2) }
	removed := EngineEvent{Kind: Removed, BlockHashes: hashes(h1), Medium: "GPU", Group: 0}
	cleared := EngineEvent{Kind: Cleared, Group: NoGroup}
	want := map[string]EngineBatch{
		"V0":  {Timestamp: ts, Events: []EngineEvent{stored(noMedium)}},
		"V2":  ranked(0, stored()),
		"V2b": ranked(0, stored(func(e *EngineEvent) { e.BlockHashes = hashes(0x18191a1b1c1d1e1f) })),
		"V3": ranked(0, stored(func(e *EngineEvent) {
			e.BlockHashes, e.Tokens = hashes(h1, h2), []uint32{1, 2, 3, 4, 5, 6, 7, 8}
		})),
		"V4": ranked(1, stored(func(e *EngineEvent) {
			e.BlockHashes, e.Parent, e.HasParent = hashes(h2), h1, true
			e.Tokens, e.LoRAName, e.LoRAID = []uint32{5, 6, 7, 8}, "adapter-a", 7
		})),
		"V5": ranked(0, stored(group0), removed, cleared),
		"V6": ranked(0, stored(fullAttention)),
		"V7": ranked(0, stored(fullAttention), removed, cleared),
		"T1": ranked(0, stored(signed, noMedium)),
		"T2": ranked(0, EngineEvent{Kind: Removed, BlockHashes: hashes(h1), Group: NoGroup}),
		"S1": ranked(0, stored(signed)),
		"C0": ranked(0, stored(func(e *EngineEvent) { e.Tokens = []uint32{10, 20, 30, 40} })),
		"C1": ranked(0,
			stored(noMedium, func(e *EngineEvent) {
				e.BlockHashes, e.Tokens = hashes(3114443937531979), []uint32{10, 20, 30, 40}
			}),
			stored(noMedium, func(e *EngineEvent) {
				e.BlockHashes, e.Tokens = hashes(5370979798324801), []uint32{50, 60, 70, 80}
				e.Parent, e.HasParent = 3114443937531979, true
			})),
	}
	vectors := golden(t)
	var d Decoder
	var got EngineBatch
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
	var b EngineBatch
	if err := new(Decoder).Decode(want, &b); err != nil {
		t.Fatal(err)
	}
	if got := AppendEngineBatch(nil, &b); string(got) != string(want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
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
		c := cursor{buf: vectors[name]}
		got, err := decodeRouterEvent(&c, new(routerMemory))
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
