package checkpoint

import (
	"bytes"
	"errors"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testID is what the tests' files are about.
var testID = ID{Worker: kv.Worker{ID: 7, Rank: 1}, BlockSize: 16, Engine: 99}

// savedRank is a rank with something in each part of a file: a chain of two blocks, and the
// second block under two engine hashes.
func savedRank() *Saved {
	var refs residency.Refs
	refs.Add(kv.TierDevice)
	root := kv.LocalHash(11)
	child := kv.Chain(kv.SequenceHash(root), 12)
	return &Saved{
		State: State{
			Sequence: sequence.State{Next: 42, LastLive: 40, HasLive: true, Remembered: []sequence.Applied{{After: 41, Sum: 1}, {After: 42, Sum: 2}}},
			Degraded: true, Groups: map[int32]bool{0: true, 3: false, -1: true},
			Names:    []Name{{}, {LoRA: "adapter", Salt: "tenant"}},
			Unlisted: []kv.EngineHash{4711}, Parked: []byte("batch"),
		},
		Blocks: []Block{
			{Slot: 2, Hash: kv.SequenceHash(root), Block: residency.NewBlock(0, false, 0, root)},
			{Slot: 5, Hash: child, Block: residency.NewBlock(kv.SequenceHash(root), true, 1, 12)},
		},
		EngineBlocks: []EngineBlock{{Hash: 1, Slot: 2, Refs: refs}, {Hash: 2, Slot: 5, Name: 1, Refs: refs}, {Hash: 3, Slot: 5, Refs: refs}},
	}
}

// encode returns the file of a rank.
func (s *Saved) encode(about ID) []byte {
	return AppendChecksum(Append(nil, about, &s.State, &Tables{
		Blocks: slices.Values(s.Blocks), NumBlocks: len(s.Blocks),
		EngineBlocks: slices.Values(s.EngineBlocks), NumEngineBlocks: len(s.EngineBlocks),
	}))
}

func TestParseReturnsWhatWasAppended(t *testing.T) {
	empty := &Saved{State: State{Groups: map[int32]bool{}, LowerTiers: true, Parked: []byte{}}, Blocks: []Block{}, EngineBlocks: []EngineBlock{}}
	for name, want := range map[string]*Saved{"full": savedRank(), "empty": empty} {
		got, err := Parse(want.encode(testID), testID)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	s := savedRank()
	for _, b := range s.EngineBlocks {
		if got := s.Block(b); got.Slot != b.Slot {
			t.Errorf("engine block %d is in slot %d, want %d", b.Hash, got.Slot, b.Slot)
		}
	}
}

// TestDamagedAndForeignFilesAreRefused: a file that is torn anywhere, flipped anywhere or about
// something else. Only a whole file is foreign.
func TestDamagedAndForeignFilesAreRefused(t *testing.T) {
	good := savedRank().encode(testID)
	for n := range len(good) {
		if _, err := Parse(good[:n], testID); err == nil || errors.Is(err, ErrForeign) {
			t.Errorf("the first %d of %d bytes: error %v", n, len(good), err)
		}
		flipped := bytes.Clone(good)
		flipped[n] ^= 0x10
		if _, err := Parse(flipped, testID); err == nil || errors.Is(err, ErrForeign) {
			t.Errorf("byte %d flipped: error %v", n, err)
		}
	}
	older := bytes.Clone(good[:len(good)-4])
	older[len(magic)]--
	if _, err := Parse(AppendChecksum(older), testID); !errors.Is(err, ErrForeign) {
		t.Errorf("another version: error %v", err)
	}
	for name, change := range map[string]func(*ID){
		"worker": func(id *ID) { id.Worker.ID++ }, "rank": func(id *ID) { id.Worker.Rank++ },
		"block size": func(id *ID) { id.BlockSize *= 2 }, "engine": func(id *ID) { id.Engine = 0 },
	} {
		other := testID
		change(&other)
		if _, err := Parse(good, other); !errors.Is(err, ErrForeign) {
			t.Errorf("another %s: error %v", name, err)
		}
	}
}

// TestFilesThatContradictThemselvesAreRefused: each has a right checksum, as a faulty writer's
// would. A rank that believed one would claim blocks that its engine does not have.
func TestFilesThatContradictThemselvesAreRefused(t *testing.T) {
	for want, change := range map[string]func(*Saved){
		"block 1: slot 2 is out of order":            func(s *Saved) { s.Blocks[1].Slot = 2 },
		"block 1: hash":                              func(s *Saved) { s.Blocks[1].Hash++ },
		"block 0: hash":                              func(s *Saved) { s.Blocks[0].Block = residency.NewBlock(0, false, 1, 11) },
		"at position 0":                              func(s *Saved) { s.Blocks[1].Block = residency.NewBlock(s.Blocks[0].Hash, true, 0, 12) },
		"engine block 2: slot 3, name 0":             func(s *Saved) { s.EngineBlocks[2].Slot = 3 },
		"engine block 0: slot 2, name 2":             func(s *Saved) { s.EngineBlocks[0].Name = 2 },
		"engine block 1: slot 5, name 1 or its refe": func(s *Saved) { s.EngineBlocks[1].Refs = 0 },
		"batch 0: no sequence number":                func(s *Saved) { s.Sequence.Remembered[0].After = 0 },
	} {
		s := savedRank()
		change(s)
		if _, err := Parse(s.encode(testID), testID); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestListsThatDoNotAddUpAreRefused: no length in a file makes Parse allocate more than the
// file has, or leave bytes over.
func TestListsThatDoNotAddUpAreRefused(t *testing.T) {
	good := savedRank().encode(testID)
	body := good[:len(good)-4]
	for name, b := range map[string][]byte{
		"bytes behind the last list": append(bytes.Clone(body), 0),
		"the last list is cut":       body[:len(body)-1],
	} {
		if _, err := Parse(AppendChecksum(bytes.Clone(b)), testID); err == nil || !strings.Contains(err.Error(), "do not add up") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	head := len(magic) + 4 + idBytes
	for at := head; at+4 <= len(body); at++ {
		huge := bytes.Clone(body)
		copy(huge[at:], []byte{0xff, 0xff, 0xff, 0xff})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, err := Parse(AppendChecksum(huge), testID)
		runtime.ReadMemStats(&after)
		if err == nil && len(s.Blocks)+len(s.EngineBlocks) != 5 {
			t.Errorf("ff at %d: %d blocks and %d engine blocks", at, len(s.Blocks), len(s.EngineBlocks))
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("ff at %d: %d bytes were allocated for a file of %d", at, n, len(huge))
		}
	}
}
