package disk

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/resource"
)

// workspace is the pair of directories that a run works in.
type workspace struct{ disk, host string }

// makeWorkspace makes the run's directories on disk and in host memory. It is an error when
// either has too little room.
func makeWorkspace(o *Options) (*workspace, error) {
	if err := checkRoom(o); err != nil {
		return nil, err
	}
	w := &workspace{}
	var err error
	if w.disk, err = os.MkdirTemp(o.Dir, "blockyard-bench-"); err != nil {
		return nil, fmt.Errorf("disk directory: %w", err)
	}
	if w.host, err = os.MkdirTemp(o.HostDir, "blockyard-bench-"); err != nil {
		return nil, errors.Join(fmt.Errorf("host directory: %w", err), w.remove())
	}
	return w, nil
}

// checkRoom returns an error when the disk, the host directory or the memory has too little room
// for a run, or when the disk directory lies in memory.
func checkRoom(o *Options) error {
	disk, err := resource.SpaceOf(o.Dir)
	if err != nil {
		return fmt.Errorf("disk directory: %w", err)
	}
	if disk.InMemory {
		return fmt.Errorf("disk directory %q (--dir): lies in memory (%s), want one on the disk to measure", o.Dir, disk.Kind)
	}
	host, err := resource.SpaceOf(o.HostDir)
	if err != nil {
		return fmt.Errorf("host directory: %w", err)
	}
	limits, err := resource.Read("/")
	if err != nil {
		return fmt.Errorf("limits of memory: %w", err)
	}
	return cmp.Or(
		checkFree("disk directory", disk, "--dir", diskNeed(o)),
		checkFree("host directory", host, "--host-dir", hostNeed(o)),
		checkMemory(&limits, memoryNeed(o)),
	)
}

// sub makes a pair of directories of this name in both.
func (w *workspace) sub(name string) (*workspace, error) {
	s := &workspace{filepath.Join(w.disk, name), filepath.Join(w.host, name)}
	if err := errors.Join(os.Mkdir(s.disk, 0o700), os.Mkdir(s.host, 0o700)); err != nil {
		return nil, err
	}
	return s, nil
}

// remove removes both directories.
func (w *workspace) remove() error {
	var errs []error
	for _, dir := range []string{w.disk, w.host} {
		if dir != "" {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// slack is room for tables, directories and rounding.
const slack = 64 << 20

// diskNeed returns the room of a run on disk: two rounds of each side, or the slot
// table of many blocks.
func diskNeed(o *Options) uint64 {
	return max(4*o.RoundBytes, uint64(o.Blocks)*storage.RecordSize) + slack
}

// hostNeed returns the room of a run in host extents: one round, or the hot prompts.
func hostNeed(o *Options) uint64 { return max(o.RoundBytes, hotHostBytes(o.Blocks)) + slack }

// memoryNeed returns the memory that a run allocates: the copiers' buffers and a round,
// or the registry of many blocks.
func memoryNeed(o *Options) uint64 {
	const perBlock = 2*storage.RecordSize + 192
	return hostNeed(o) + max(3*o.RoundBytes, uint64(o.Blocks)*perBlock) + slack
}

// checkFree returns an error for a directory with fewer than need free bytes. what names the
// directory, and flag the flag that chooses another one.
func checkFree(what string, space resource.Space, flag string, need uint64) error {
	// Total is 0 for a tmpfs without a size of its own; then memory is the limit.
	if space.Total != 0 && space.Free < need {
		return fmt.Errorf("%s: %s (%s) has %d bytes free, the run needs %d: choose another with %s, or lower --round-size or --blocks",
			what, space.Mount, space.Kind, space.Free, need, flag)
	}
	return nil
}

// checkMemory returns an error for a run that needs more bytes of memory than the node or a
// control group has left.
func checkMemory(l *resource.Limits, need uint64) error {
	left, of := l.MemAvailable, "the node"
	for _, g := range l.Groups {
		if g.Left() < left {
			left, of = g.Left(), g.Path
		}
	}
	if left != 0 && left < need {
		return fmt.Errorf("memory: %s has %d bytes left, the run needs %d: lower --blocks or --round-size", of, left, need)
	}
	return nil
}

// namespaceOf returns a namespace whose blocks have blockBytes bytes, at least 16. Equal names of
// models give equal namespaces.
func namespaceOf(model string, blockBytes uint64) kv.Namespace {
	tokens, width := uint32(1), uint32(2)
	if blockBytes%(16*2) == 0 {
		tokens = 16
	}
	return kv.Namespace{
		Model: model, Weights: "none", DType: "bfloat16", Layers: 1, OuterDim: 1, BlockSize: tokens,
		InnerDim: uint32(blockBytes / uint64(tokens*width)), DTypeBytes: width, Layout: "fully_contiguous",
		TP: 1, PP: 1, DCP: 1, KVFormat: "bench",
	}
}

// appendPrompt appends the blocks from … from+n-1 of the prompt with that number. Keys and hashes
// follow from the number and not from tokens: to the manager they look random all the same, and
// hashing is not measured.
func appendPrompt(to []blockmgr.Block, prompt uint64, from, n int) []blockmgr.Block {
	for i := from; i < from+n; i++ {
		b := blockmgr.Block{
			Key: promptKey(prompt, i).InGroup(0), Parent: promptKey(prompt, i-1), Position: uint32(i),
			Local: kv.LocalHash(mix(prompt, i, 2)), Seq: kv.SequenceHash(mix(prompt, i, 3)),
		}
		if i > 0 {
			b.ParentSeq = kv.SequenceHash(mix(prompt, i-1, 3))
		}
		to = append(to, b)
	}
	return to
}

// promptKey returns the key of a prompt's block i; -1 is the root.
func promptKey(prompt uint64, i int) kv.BlockKey {
	var k kv.BlockKey
	binary.LittleEndian.PutUint64(k[:], mix(prompt, i, 0))
	binary.LittleEndian.PutUint64(k[8:], mix(prompt, i, 1))
	return k
}

// mix returns a number that looks random and follows from the arguments alone. what tells apart
// the hashes of one block.
func mix(prompt uint64, i int, what uint64) uint64 {
	// The finalizer of SplitMix64, a bijection of 64 bits.
	x := prompt<<24 ^ uint64(i+1)<<2 ^ what
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fillRandom fills b with bytes that no device compresses. Up to seven bytes at the end
// stay.
func fillRandom(b []byte, seed uint64) {
	rng := rand.NewPCG(seed, 1)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, rng.Uint64())
	}
}

// stamp writes the block's identity into every page of its bytes.
func stamp(data []byte, b *blockmgr.Block) {
	for page := 0; page < len(data); page += storage.PageSize {
		binary.LittleEndian.PutUint64(data[page:], uint64(b.Seq)+uint64(page))
	}
}

// stamped reports whether every page of data has the stamp that stamp wrote for the block b.
func stamped(data []byte, b *blockmgr.Block) bool {
	for page := 0; page < len(data); page += storage.PageSize {
		if binary.LittleEndian.Uint64(data[page:]) != uint64(b.Seq)+uint64(page) {
			return false
		}
	}
	return true
}
