package engineevent

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// decodeOne decodes a batch of one event and fails unless it is good.
func decodeOne(t *testing.T, event any) Event {
	t.Helper()
	b := decodeBatch(t, list{ts, list{event}, 0})
	if len(b.Events) != 1 {
		t.Fatalf("%d events, bad: %v", len(b.Events), b.Bad)
	}
	return b.Events[0]
}

func decodeBatch(t *testing.T, batch any) *Batch {
	t.Helper()
	var b Batch
	if err := new(Decoder).Decode(wire(t, batch), &b); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestBatchIsReadInEveryShape(t *testing.T) {
	event := list{"AllBlocksCleared"}
	for name, tc := range map[string]struct {
		batch   any
		rank    kv.DPRank
		hasRank bool
	}{
		"array of 2":            {list{ts, list{event}}, 0, false},
		"array of 3":            {list{ts, list{event}, 3}, 3, true},
		"nil rank":              {list{ts, list{event}, nil}, 0, false},
		"a field of the future": {list{ts, list{event}, 1, dict{"x", 1}}, 1, true},
		"map":                   {dict{"ts", ts, "events", list{event}, "data_parallel_rank", 2}, 2, true},
		"map in another order":  {dict{"new", list{1}, "data_parallel_rank", nil, "events", list{event}, "ts", ts}, 0, false},
	} {
		want := &Batch{
			Timestamp: ts, Rank: tc.rank, HasRank: tc.hasRank, Events: []Event{{Kind: kvevent.Cleared, Group: NoGroup}},
		}
		if diff := cmp.Diff(want, decodeBatch(t, tc.batch), visible); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	if b := decodeBatch(t, list{1700000000, list{}, 0}); b.Timestamp != 1700000000 {
		t.Errorf("integer timestamp: got %v", b.Timestamp)
	}
	if b := decodeBatch(t, list{nil, list{}}); b.Timestamp != 0 {
		t.Errorf("nil timestamp: got %v", b.Timestamp)
	}
}

func TestDamagedBatchIsAnErrorAndHoldsNothing(t *testing.T) {
	cleared := list{"AllBlocksCleared"}
	for name, payload := range map[string][]byte{
		"nothing":          {},
		"a string":         wire(t, "hello"),
		"one element":      wire(t, list{ts}),
		"events no array":  wire(t, list{ts, 1, 0}),
		"text timestamp":   wire(t, list{"now", list{}, 0}),
		"negative rank":    wire(t, list{ts, list{cleared}, -1}),
		"rank too large":   wire(t, list{ts, list{cleared}, uint64(1) << 32}),
		"trailing byte":    append(wire(t, list{ts, list{cleared}, 0}), 0),
		"map no events":    wire(t, dict{"ts", ts}),
		"events twice":     wire(t, dict{"events", list{cleared}, "events", list{cleared}}),
		"truncated events": wire(t, list{ts, list{cleared, cleared}})[:20],
		"events announced": {0x92, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff},
	} {
		b := Batch{Events: make([]Event, 3), Rank: 9, HasRank: true}
		if err := new(Decoder).Decode(payload, &b); err == nil {
			t.Errorf("%s: no error", name)
		}
		if len(b.Events) != 0 || b.HasRank || len(b.Bad) != 0 {
			t.Errorf("%s: batch holds %+v", name, b)
		}
	}
}

func TestEveryTruncationOfAGoldenBatchIsAnError(t *testing.T) {
	for name, v := range golden(t) {
		if strings.HasPrefix(name, "R") || strings.HasPrefix(name, "E") {
			continue
		}
		var b Batch
		var d Decoder
		for n := range v {
			if err := d.Decode(v[:n], &b); err == nil {
				t.Errorf("%s: no error for its first %d bytes of %d", name, n, len(v))
			}
		}
	}
}

func TestOneBadEventLeavesTheRestOfItsBatch(t *testing.T) {
	good := list{"BlockRemoved", list{7}, "GPU"}
	for name, bad := range map[string]any{
		"unknown tag":         list{"Nonsense", 1},
		"unknown tag in map":  dict{"type", "Nonsense", "x", 1},
		"no event":            7,
		"empty array":         list{},
		"no type":             dict{"block_hashes", list{1}},
		"stored too short":    list{"BlockStored", list{1}, nil, list{1}},
		"removed too short":   list{"BlockRemoved"},
		"hash is text":        dict{"type", "BlockStored", "block_hashes", list{"a"}},
		"hash of no bytes":    list{"BlockRemoved", list{[]byte{}}},
		"nil hash":            list{"BlockRemoved", list{nil}},
		"negative token":      list{"BlockStored", list{1}, nil, list{-1}, 1},
		"token too large":     list{"BlockStored", list{1}, nil, list{1 << 33}, 1},
		"token among pairs":   list{"BlockStored", list{1}, nil, list{list{1, 2}, 3}, 1},
		"pair of three":       list{"BlockStored", list{1}, nil, list{list{1, 2, 3}}, 1},
		"group too large":     dict{"type", "BlockRemoved", "block_hashes", list{1}, "group_idx", 1 << 31},
		"negative group":      dict{"type", "BlockRemoved", "block_hashes", list{1}, "group_idx", -1},
		"medium no text":      dict{"type", "BlockRemoved", "block_hashes", list{1}, "medium", 1},
		"extra keys no list":  dict{"type", "BlockStored", "extra_keys", "a"},
		"extra key no list":   dict{"type", "BlockStored", "extra_keys", list{"a"}},
		"mm infos no list":    dict{"type", "BlockStored", "block_mm_infos", 1},
		"mm hash negative":    dict{"type", "BlockStored", "block_mm_infos", list{dict{"mm_objects", list{dict{"mm_hash", -1}}}}},
		"key that is no text": dict{"type", "BlockStored", 1, 2},
	} {
		b := decodeBatch(t, list{ts, list{good, bad, good}, 0})
		if len(b.Events) != 2 || b.Events[0].BlockHashes[0] != 7 || b.Events[1].BlockHashes[0] != 7 {
			t.Errorf("%s: events %+v", name, b.Events)
		}
		if len(b.Bad) != 1 {
			t.Errorf("%s: bad %v", name, b.Bad)
			continue
		}
		if !strings.HasPrefix(b.Bad[0].Error(), "event 1: ") {
			t.Errorf("%s: error %q does not name the event", name, b.Bad[0])
		}
		if strings.HasPrefix(name, "unknown tag") != errors.Is(b.Bad[0], ErrUnknownTag) {
			t.Errorf("%s: error %q: unknown tag is %t", name, b.Bad[0], errors.Is(b.Bad[0], ErrUnknownTag))
		}
	}
}

// TestBadEventsShowHowTheyBegin: a bad event is kept by its first bytes, which do
// not borrow from the input.
func TestBadEventsShowHowTheyBegin(t *testing.T) {
	long := list{"BlockRemoved", list{strings.Repeat("x", 100)}}
	payload := wire(t, list{ts, list{list{"AllBlocksCleared"}, 7, long}, 0})
	var b Batch
	if err := new(Decoder).Decode(payload, &b); err != nil {
		t.Fatal(err)
	}
	clear(payload)
	want := [][]byte{{7}, wire(t, long)[:48]}
	if len(b.Bad) != len(want) {
		t.Fatalf("bad %v", b.Bad)
	}
	for i, err := range b.Bad {
		var bad *BadEvent
		if !errors.As(err, &bad) || bad.Index != i+1 || !bytes.Equal(bad.Prefix, want[i]) || bad.Reason == nil {
			t.Errorf("bad event %d: %#v, want prefix %x", i, err, want[i])
		}
	}
}

func TestABatchOfGarbageIsGivenUp(t *testing.T) {
	events := make(list, maxBadEvents)
	for i := range events {
		events[i] = 1
	}
	if b := decodeBatch(t, list{ts, events}); len(b.Bad) != maxBadEvents {
		t.Errorf("%d bad events, want %d", len(b.Bad), maxBadEvents)
	}
	var b Batch
	if err := new(Decoder).Decode(wire(t, list{ts, append(events, 1)}), &b); err == nil {
		t.Errorf("no error for %d bad events", maxBadEvents+1)
	}
}

func TestWhatIsNotKnownIsSkipped(t *testing.T) {
	got := decodeOne(t, dict{
		"session_id", "s-1", "block_hashes", list{h1}, "parent_block_hash", nil, "future", dict{"a", list{1, nil, 2.5}},
		"token_ids", list{1, 2, 3, 4}, "block_size", 4, "medium", "GPU", "type", "BlockStored", "more", []byte{1},
	})
	if diff := cmp.Diff(stored(), got, visible); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	b := decodeBatch(t, list{ts, list{dict{"type", "Ignored", "token_ids", 1}, list{"Ignored", 1}, list{"AllBlocksCleared", nil, 1}}, 0})
	if len(b.Events) != 1 || len(b.Bad) != 0 {
		t.Errorf("ignored events: got events %v, bad %v", b.Events, b.Bad)
	}
}

func TestFieldsOfAnotherKindAreDropped(t *testing.T) {
	removed := decodeOne(t, dict{
		"type", "BlockRemoved", "block_hashes", list{h1}, "token_ids", list{1}, "parent_block_hash", 3, "lora_name", "a", "lora_id", 3,
		"cache_salt", "b", "block_size", 4, "group_idx", 1, "medium", "CPU",
	})
	want := Event{Kind: kvevent.Removed, BlockHashes: hashes(h1), Medium: "CPU", Group: 1}
	if diff := cmp.Diff(want, removed, visible); diff != "" {
		t.Errorf("removed: (-want +got)\n%s", diff)
	}
	cleared := decodeOne(t, dict{"type", "AllBlocksCleared", "block_hashes", list{h1}, "ownership", "peer", "medium", "CPU"})
	want = Event{Kind: kvevent.Cleared, Ownership: "peer", Medium: "CPU", Group: NoGroup}
	if diff := cmp.Diff(want, cleared, visible); diff != "" {
		t.Errorf("cleared: (-want +got)\n%s", diff)
	}
}

func TestHashesOfEveryTypeAreProjected(t *testing.T) {
	got := decodeOne(t, list{"BlockRemoved", list{
		1, -1, uint64(1) << 63, []byte{1, 2}, []byte{9, 9, 1, 2, 3, 4, 5, 6, 7, 8},
	}})
	want := hashes(1, 1<<64-1, 1<<63, 0x0102, 0x0102030405060708)
	if diff := cmp.Diff(want, got.BlockHashes); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	parent := decodeOne(t, list{"BlockStored", list{1}, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, list{1}, 1})
	if !parent.HasParent || parent.Parent != 0x0203040506070809 {
		t.Errorf("parent: got %#x, %t", parent.Parent, parent.HasParent)
	}
}

func TestTokenPairsAreFlattened(t *testing.T) {
	for _, tc := range []struct {
		pairs list
		want  []uint32
		eagle bool
	}{
		{list{}, nil, false},
		{list{1, 2}, []uint32{1, 2}, false},
		{list{list{0, 1}}, []uint32{0, 1}, true},
		{list{list{0, 1}, list{1, 2}, list{2, 3}, list{3, 70000}}, []uint32{0, 1, 2, 3, 70000}, true},
	} {
		got := decodeOne(t, list{"BlockStored", list{1}, nil, tc.pairs, 2})
		if diff := cmp.Diff(tc.want, got.Tokens, visible); diff != "" || got.Eagle != tc.eagle {
			t.Errorf("%v: eagle %t (-want +got)\n%s", tc.pairs, got.Eagle, diff)
		}
	}
}

func TestSuffixOfPositionalEventsIsReadByType(t *testing.T) {
	mm := list{dict{"mm_objects", list{dict{"mm_hash", 42, "offsets", list{}}}}}
	for name, tc := range map[string]struct {
		suffix list
		change func(*Event)
	}{
		"group":               {list{2}, func(e *Event) { e.Group = 2 }},
		"nil group":           {list{nil}, func(*Event) {}},
		"group, kind, window": {list{2, "mamba", 128}, func(e *Event) { e.Group, e.SpecKind, e.SlidingWindow = 2, "mamba", 128 }},
		"kind before group":   {list{"mamba", 2}, func(e *Event) { e.Group, e.SpecKind = 2, "mamba" }},
		"second text":         {list{"mamba", "LOCAL"}, func(e *Event) { e.SpecKind = "mamba" }},
		"infos":               {list{mm}, func(e *Event) { e.Multimodal = [][]uint64{{42}} }},
		"infos among the rest": {list{0, mm, 9, "mamba"}, func(e *Event) {
			e.Group, e.SlidingWindow, e.SpecKind, e.Multimodal = 0, 9, "mamba", [][]uint64{{42}}
		}},
		"four":             {list{1, "mamba", 9, "REMOTE"}, func(e *Event) { e.Group, e.SpecKind, e.SlidingWindow, e.Locality = 1, "mamba", 9, "REMOTE" }},
		"five":             {list{1, "mamba", nil, "LOCAL", "peer"}, func(e *Event) { e.Group, e.SpecKind, e.Locality, e.Ownership = 1, "mamba", "LOCAL", "peer" }},
		"five, mostly nil": {list{nil, nil, nil, nil, "peer"}, func(e *Event) { e.Ownership = "peer" }},
		"more than five": {list{1, "mamba", 9, "LOCAL", "peer", dict{"x", 1}, 5}, func(e *Event) {
			e.Group, e.SpecKind, e.SlidingWindow, e.Locality, e.Ownership = 1, "mamba", 9, "LOCAL", "peer"
		}},
		"what has no meaning": {list{2.5, true, dict{}, 3}, func(e *Event) { e.Group = 3 }},
		"beyond the fifth":    {list{nil, true, nil, true, nil, 3}, func(*Event) {}},
		"a third integer":     {list{1, 2, 3}, func(e *Event) { e.Group, e.SlidingWindow = 1, 2 }},
	} {
		event := append(list{"BlockStored", list{h1}, nil, list{1, 2, 3, 4}, 4, nil, "GPU", nil, nil}, tc.suffix...)
		if diff := cmp.Diff(stored(tc.change), decodeOne(t, event), visible); diff != "" {
			t.Errorf("stored, %s: (-want +got)\n%s", name, diff)
		}
		want := Event{Kind: kvevent.Removed, BlockHashes: hashes(h1), Medium: "GPU", Group: NoGroup}
		tc.change(&want)
		want.Multimodal = nil
		event = append(list{"BlockRemoved", list{h1}, "GPU"}, tc.suffix...)
		if diff := cmp.Diff(want, decodeOne(t, event), visible); diff != "" {
			t.Errorf("removed, %s: (-want +got)\n%s", name, diff)
		}
	}
}

func TestEventsOfABatchDoNotShareGrowth(t *testing.T) {
	b := decodeBatch(t, list{ts, list{list{"BlockRemoved", list{1}}, list{"BlockRemoved", list{2}}}})
	_ = append(b.Events[0].BlockHashes, 9)
	if b.Events[1].BlockHashes[0] != 2 {
		t.Error("appending to one event's hashes changed another event")
	}
}

func TestDecodedBatchDoesNotBorrowFromItsInput(t *testing.T) {
	payload := wire(t, list{ts, list{dict{
		"type", "BlockStored", "block_hashes", list{h1}, "token_ids", list{1, 2, 3, 4}, "block_size", 4, "medium", "GPU",
		"lora_name", "ad", "cache_salt", "tenant",
	}}})
	var b Batch
	if err := new(Decoder).Decode(payload, &b); err != nil {
		t.Fatal(err)
	}
	copy(payload, bytes.Repeat([]byte{0xff}, len(payload)))
	want := stored(func(e *Event) { e.LoRAName, e.Salt = "ad", "tenant" })
	if diff := cmp.Diff(want, b.Events[0], visible); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestClaimedSizesAllocateNothing(t *testing.T) {
	// Four gigabytes announced in every place where a length can stand.
	huge := []byte{0xdd, 0xff, 0xff, 0xff, 0xff}
	text := []byte{0xdb, 0xff, 0xff, 0xff, 0xff}
	event := func(key string, value []byte) []byte {
		b := append([]byte{0x92, 0xc0, 0x91, 0x82}, wire(t, "type")...)
		b = append(append(b, wire(t, "BlockStored")...), wire(t, key)...)
		return append(b, value...)
	}
	for _, payload := range [][]byte{
		huge, event("block_hashes", huge), event("token_ids", huge), event("extra_keys", huge), event("medium", text),
		event("parent_block_hash", []byte{0xc6, 0xff, 0xff, 0xff, 0xff}), event("x", []byte{0xdf, 0xff, 0xff, 0xff, 0xff}),
	} {
		var b Batch
		if err := new(Decoder).Decode(payload, &b); err == nil {
			t.Errorf("% x: no error", payload)
		}
		if n := cap(b.mem.hashes) + cap(b.mem.tokens) + cap(b.Events); n > 64 {
			t.Errorf("% x: room for %d elements allocated", payload, n)
		}
	}
}

func TestInternedStringsAreBounded(t *testing.T) {
	var in interner
	for i := range 3 * maxInterned {
		s := fmt.Sprint("salt-", i)
		if got := in.get([]byte(s)); got != s {
			t.Fatalf("got %q, want %q", got, s)
		}
	}
	if len(in.seen) > maxInterned {
		t.Errorf("%d strings kept, want at most %d", len(in.seen), maxInterned)
	}
	long := strings.Repeat("x", maxInternedLength+1)
	if got := in.get([]byte(long)); got != long || in.seen[long] != "" {
		t.Error("a long string must be returned and not kept")
	}
}
