package kvbm

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const slotBytes = 4096

// smallModel has blocks of 2 layers · 2 · 16 tokens · 8 elements · 2 bytes: 1 KiB
// in slots of 4 KiB.
func smallModel() config.Model {
	return config.Model{NumLayers: 2, OuterDim: 2, PageSize: 16, InnerDim: 8}
}

// memory is a storage that only says how much there is.
type memory struct {
	tier kv.Tier
	size uint64
}

func (m memory) Tier() kv.Tier { return m.tier }
func (m memory) Bytes() uint64 { return m.size }

// directory is a storage that says where it is.
type directory struct {
	memory
	dir string
}

func (d directory) Dir() string { return d.dir }

// allocator makes one storage.
type allocator struct {
	makes  config.Storage
	err    error
	asked  []uint64
	closed int
}

// closable is a storage of an allocator that counts its closing.
type closable struct {
	config.Storage
	by  *allocator
	err error
}

func (c closable) Close() error { c.by.closed++; return c.err }

func (a *allocator) Tier() kv.Tier { return kv.TierHost }

func (a *allocator) Allocate(size uint64) (config.Storage, error) {
	a.asked = append(a.asked, size)
	return a.makes, a.err
}

// filter lets the blocks pass that it has.
type filter []kv.SequenceHash

func (f filter) ShouldOffload(h kv.SequenceHash) bool { return slices.Contains(f, h) }

// listener writes down what it is told.
type listener struct {
	mu   sync.Mutex
	told []string
}

func (l *listener) BlockStored(t kv.Tier, hash, parent kv.SequenceHash, hasParent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, fmt.Sprintf("+%s %d after %d %v", t, hash, parent, hasParent))
}

func (l *listener) BlockRemoved(t kv.Tier, hash kv.SequenceHash) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, fmt.Sprintf("-%s %d", t, hash))
}

// take is what it was told since the last take.
func (l *listener) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	told := l.told
	l.told = nil
	return told
}

// stored is what a listener is told of blocks that come into a tier.
func stored(t kv.Tier, blocks []blockmgr.Block) []string {
	var told []string
	for i, b := range blocks {
		var parent kv.SequenceHash
		if i > 0 {
			parent = blocks[i-1].Seq
		}
		told = append(told, fmt.Sprintf("+%s %d after %d %v", t, b.Seq, parent, i > 0))
	}
	return told
}

// removed is what a listener is told of a sequence that is taken out of a tier,
// the last block first.
func removed(t kv.Tier, blocks []blockmgr.Block) []string {
	var told []string
	for _, b := range slices.Backward(blocks) {
		told = append(told, fmt.Sprintf("-%s %d", t, b.Seq))
	}
	return told
}

// both is a configuration with n host and n disk blocks, and a place for it.
func both(t *testing.T, n uint64) (config.Config, Place) {
	t.Helper()
	cfg := config.Config{
		Runtime:    config.Runtime{WorkerID: 7, NIXL: config.NIXLOptions{Mode: config.NIXLDisabled}},
		Model:      smallModel(),
		HostLayout: &config.Layout{NumBlocks: n, Storage: []config.Storage{memory{kv.TierHost, n * slotBytes}}},
		DiskLayout: &config.Layout{NumBlocks: n, Storage: []config.Storage{memory{kv.TierDisk, n * slotBytes}}},
	}
	return cfg, Place{
		HostDir: t.TempDir(), Disk: config.DiskFiles{Dir: t.TempDir()},
		Model: "tiny", Weights: "w0", DType: "bfloat16", KVFormat: "test",
	}
}

// client is a manager with one session.
type client struct {
	*Manager
	t *testing.T
	s blockmgr.SessionID
}

// open is New, which must succeed. The manager is closed when the test ends.
func open(t *testing.T, cfg config.Config, place Place) *client {
	t.Helper()
	m, err := New(t.Context(), cfg, place)
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	return begin(t, m)
}

// begin begins a session. The manager is closed when the test ends.
func begin(t *testing.T, m *Manager) *client {
	t.Helper()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	s, err := m.Begin()
	if err != nil {
		t.Fatalf("session: %v", err)
	}
	return &client{m, t, s}
}

// sequence names n blocks with tokens that follow from seed.
func (c *client) sequence(seed uint32, n int) []blockmgr.Block {
	id := blockmgr.NewIdentifier()
	root := id.Root(c.Pool().NamespaceID(), "", "", "")
	blocks := make([]blockmgr.Block, n)
	for i := range blocks {
		if i == 0 {
			blocks[i] = id.First(root, tokens(seed, i))
		} else {
			blocks[i] = id.Next(&blocks[i-1], tokens(seed, i))
		}
	}
	return blocks
}

func tokens(seed uint32, block int) []uint32 {
	ts := make([]uint32, 16)
	for i := range ts {
		ts[i] = seed<<16 + uint32(block*16+i)
	}
	return ts
}

// content is what a block holds.
func (c *client) content(b *blockmgr.Block) []byte {
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], uint64(b.Seq))
	return bytes.Repeat(word[:], int(c.Pool().BlockBytes())/len(word))
}

// store registers blocks of a sequence and returns handles to them, with nothing
// left on its way to disk.
func (c *client) store(seed uint32, blocks []blockmgr.Block) []*blockmgr.ImmutableBlock {
	c.t.Helper()
	slots, err := c.Pool().Allocate(c.s, len(blocks))
	if err != nil {
		c.t.Fatalf("allocate: %v", err)
	}
	for i, b := range slots {
		if err := b.ApplyTokenBlock(blockmgr.TokenBlock{Block: blocks[i], Tokens: tokens(seed, i)}); err != nil {
			c.t.Fatalf("apply: %v", err)
		}
		copy(b.Data(), c.content(&blocks[i]))
	}
	handles, err := c.Pool().Register(c.s, slots)
	if err != nil {
		c.t.Fatalf("register: %v", err)
	}
	c.quiesce()
	return handles
}

// add is store without the handles.
func (c *client) add(seed uint32, blocks []blockmgr.Block) {
	c.t.Helper()
	release(c.store(seed, blocks))
}

func release(handles []*blockmgr.ImmutableBlock) {
	for _, h := range handles {
		h.Release()
	}
}

func (c *client) quiesce() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	if err := c.Pool().Quiesce(ctx); err != nil {
		c.t.Fatalf("quiesce: %v", err)
	}
}

// find is how many of blocks are found, with the right bytes.
func (c *client) find(blocks []blockmgr.Block) int {
	c.t.Helper()
	handles, err := c.Pool().Match(c.t.Context(), c.s, blocks)
	if err != nil {
		c.t.Fatalf("match: %v", err)
	}
	defer release(handles)
	for i, h := range handles {
		if !bytes.Equal(h.Data(), c.content(&blocks[i])) {
			c.t.Errorf("block %d has wrong bytes", i)
		}
	}
	return len(handles)
}

// waitFor waits for a condition that other goroutines bring about.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	waittest.Until(t, what, cond)
}
