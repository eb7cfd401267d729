package blockmgr

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// handleTwin knows of every handle what it must be, and of the pool only what
// follows from that: how many slots are granted and pinned.
type handleTwin struct {
	*testPool
	mutable   []*twinBlock
	immutable []twinHandle
	// committed are the keys that ever were registered.
	committed map[kv.StoredKey]bool
}

type twinBlock struct {
	handle *MutableBlock
	state  BlockState
	tokens []uint32
	block  Block
}

type twinHandle struct {
	handle *ImmutableBlock
	block  Block
}

// take takes one or none of the handles out of a list.
func take[T any](t *rapid.T, from *[]T) (taken T, ok bool) {
	if len(*from) == 0 {
		return taken, false
	}
	i := rapid.IntRange(0, len(*from)-1).Draw(t, "handle")
	taken = (*from)[i]
	*from = slices.Delete(*from, i, i+1)
	return taken, true
}

func (m *handleTwin) Allocate(t *rapid.T) {
	n := rapid.IntRange(0, 5).Draw(t, "n")
	m.quiesce()
	available, before := m.naiveAvailable(), m.Stats()
	blocks, err := m.Pool.Allocate(m.sid, n)
	switch {
	case n <= available && (err != nil || len(blocks) != n):
		t.Fatalf("%d of %d: %d, %v", n, available, len(blocks), err)
	case n > available && (!errors.Is(err, ErrNotEnoughBlocks) || m.Stats() != before):
		t.Fatalf("%d of %d: %v", n, available, err)
	}
	for _, b := range blocks {
		m.mutable = append(m.mutable, &twinBlock{handle: b})
	}
}

// naiveAvailable is what Allocate can have by what that means: leaves that
// nobody uses are taken away until there are none.
func (m *handleTwin) naiveAvailable() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	idle := map[registry.ID]bool{}
	m.slots.Host.Each(func(_ registry.Ref, s *tier.Slot) {
		if s.Entry != registry.None {
			idle[s.Entry] = s.State == storage.StateSealed && s.Pins+s.Holds == 0
		}
	})
	n := m.slots.Host.Free()
	for again := true; again; {
		again = false
		for id := range idle {
			leaf := idle[id]
			for child := range idle {
				leaf = leaf && m.slots.Registry.At(child).Parent != id
			}
			if leaf {
				delete(idle, id)
				n++
				again = true
			}
		}
	}
	return n
}

// Step does one thing to one block, which works in some states.
func (m *handleTwin) Step(t *rapid.T) {
	if len(m.mutable) == 0 {
		return
	}
	b := m.mutable[rapid.IntRange(0, len(m.mutable)-1).Draw(t, "block")]
	var err error
	works, to := false, b.state
	switch rapid.IntRange(0, 5).Draw(t, "step") {
	case 0:
		err = b.handle.InitSequence(Root{Seed: 1})
		works, to = b.state == BlockReset, BlockPartial
	case 1:
		tokens := blockTokens(0)[:rapid.IntRange(0, 16).Draw(t, "tokens")]
		var left []uint32
		left, err = b.handle.AddTokens(tokens)
		if works = b.state == BlockPartial; works {
			b.tokens = append(b.tokens, tokens[:len(tokens)-len(left)]...)
			if len(left) > 0 && len(b.tokens) != 16 {
				t.Fatalf("%d tokens refused by a block of %d", len(left), len(b.tokens))
			}
		}
	case 2:
		n := rapid.IntRange(0, 16).Draw(t, "tokens")
		err = b.handle.PopTokens(n)
		if works = b.state == BlockPartial && n <= len(b.tokens); works {
			b.tokens = b.tokens[:len(b.tokens)-n]
		}
	case 3:
		err = b.handle.Commit()
		works, to = b.state == BlockPartial && len(b.tokens) == 16, BlockComplete
		if works {
			b.block, _ = b.handle.Block()
		}
	case 4:
		err = b.handle.Reset()
		works, to, b.tokens = true, BlockReset, nil
	case 5:
		blocks := chain(rapid.Uint64Range(1, modelChains).Draw(t, "chain"), modelChainLen)
		block := blocks[rapid.IntRange(0, modelChainLen-1).Draw(t, "identity")]
		err = b.handle.ApplyTokenBlock(TokenBlock{Block: block, Tokens: blockTokens(0)})
		if works, to = b.state == BlockReset, BlockComplete; works {
			b.block, b.tokens = block, blockTokens(0)
		}
	}
	if (err == nil) != works {
		t.Fatalf("a %s block with %d tokens: %v, want success %v", b.state, len(b.tokens), err, works)
	}
	if works {
		b.state = to
	}
	if b.handle.State() != b.state || !slices.Equal(b.handle.Tokens(), b.tokens) {
		t.Fatalf("is %s with %v, want %s with %v", b.handle.State(), b.handle.Tokens(), b.state, b.tokens)
	}
}

// Register registers some complete blocks, and now and then one that is not.
func (m *handleTwin) Register(t *rapid.T) {
	var chosen []*twinBlock
	complete := true
	for _, b := range m.mutable {
		if (b.state == BlockComplete || rapid.IntRange(0, 9).Draw(t, "bad") == 0) && rapid.Bool().Draw(t, "chosen") {
			chosen = append(chosen, b)
			complete = complete && b.state == BlockComplete
		}
	}
	handles := make([]*MutableBlock, len(chosen))
	for i, b := range chosen {
		handles[i] = b.handle
		copy(b.handle.Data(), m.content(&b.block, 0))
	}
	registered, err := m.Pool.Register(m.sid, handles)
	if works := complete && len(chosen) > 0; (err == nil) != works {
		t.Fatalf("register of %d blocks: %v, want success %v", len(chosen), err, works)
	}
	for i, r := range registered {
		m.immutable = append(m.immutable, twinHandle{r, chosen[i].block})
		m.committed[r.Key()] = true
		m.mutable = slices.DeleteFunc(m.mutable, func(b *twinBlock) bool { return b == chosen[i] })
	}
}

// Bring takes a run of blocks through the whole lifecycle, as far as there is
// room for them, and often lets go of them.
func (m *handleTwin) Bring(t *rapid.T) {
	blocks := drawRun(t)
	allocated, err := m.Pool.Allocate(m.sid, len(blocks))
	if err != nil || len(blocks) == 0 {
		return
	}
	m.prepare(allocated, blocks)
	keep := rapid.IntRange(0, 3).Draw(t, "kept") == 0
	handles, err := m.Pool.Register(m.sid, allocated)
	if err != nil {
		t.Fatalf("register of %d blocks: %v", len(blocks), err)
	}
	for i, h := range handles {
		m.committed[h.Key()] = true
		if keep {
			m.immutable = append(m.immutable, twinHandle{h, blocks[i]})
		} else {
			h.Release()
		}
	}
}

// AfterRelease releases all handles to registered blocks.
func (m *handleTwin) AfterRelease(*rapid.T) {
	for _, h := range m.immutable {
		h.handle.Release()
	}
	m.immutable = nil
}

func (m *handleTwin) Match(t *rapid.T) {
	blocks := drawRun(t)
	ctx, cancel := context.WithCancel(context.Background())
	if rapid.Bool().Draw(t, "hurried") {
		cancel()
	}
	defer cancel()
	handles, err := m.Pool.Match(ctx, m.sid, blocks)
	if err != nil || len(handles) > len(blocks) {
		t.Fatalf("match: %d of %d, %v", len(handles), len(blocks), err)
	}
	for i, h := range handles {
		m.immutable = append(m.immutable, twinHandle{h, blocks[i]})
	}
}

func (m *handleTwin) ReleaseMutable(t *rapid.T) {
	if b, ok := take(t, &m.mutable); ok {
		b.handle.Release()
		b.handle.Release()
		if b.handle.Data() != nil {
			t.Fatalf("a released block has memory")
		}
	}
}

func (m *handleTwin) ReleaseImmutable(t *rapid.T) {
	if h, ok := take(t, &m.immutable); ok {
		h.handle.Release()
		h.handle.Release()
		if h.handle.Data() != nil {
			t.Fatalf("a released handle has memory")
		}
	}
}

func (m *handleTwin) Reset(t *rapid.T) {
	kind := rapid.SampledFrom([]kv.Tier{kv.TierHost, kv.TierDisk}).Draw(t, "tier")
	if m.slots.Disk == nil {
		kind = kv.TierHost
	}
	m.quiesce()
	err := m.Pool.Reset(kind)
	if used := kind == kv.TierHost && len(m.mutable)+len(m.immutable) > 0; used != errors.Is(err, ErrActive) {
		t.Fatalf("reset of %s with %d and %d handles: %v", kind, len(m.mutable), len(m.immutable), err)
	}
	if st := m.status(kind); err == nil && (st.Active != 0 || st.Inactive != 0) {
		t.Fatalf("after a reset: %+v", st)
	}
}

func (m *handleTwin) ResetBlocks(t *rapid.T) {
	blocks := drawRun(t)
	hashes := make([]kv.SequenceHash, len(blocks))
	for i := range blocks {
		hashes[i] = blocks[i].Seq
	}
	m.quiesce()
	res, err := m.Pool.ResetBlocks(kv.TierHost, hashes)
	if err != nil || len(res.Reset)+len(res.NotFound)+len(res.NotReset) != len(blocks) {
		t.Fatalf("%+v, %v", res, err)
	}
	for _, h := range m.immutable {
		held := slices.Contains(hashes, h.block.Seq)
		if held != slices.Contains(res.NotReset, h.block.Seq) {
			t.Fatalf("a held block is not among %v", res.NotReset)
		}
	}
}

func (m *handleTwin) Prefetch(t *rapid.T) { m.Pool.Prefetch(drawRun(t)) }

func (m *handleTwin) Recall(t *rapid.T) {
	var keys []kv.StoredKey
	for _, b := range drawRun(t) {
		keys = append(keys, b.Key)
	}
	m.Touch(keys)
}

func (m *handleTwin) EndSession(*rapid.T) {
	m.Pool.EndSession(m.sid, nil)
	for _, b := range m.mutable {
		if b.handle.Data() != nil {
			m.t.Errorf("a block outlives its session")
		}
		b.handle.Release()
	}
	for _, h := range m.immutable {
		if h.handle.Valid() {
			m.t.Errorf("a handle outlives its session")
		}
		h.handle.Release()
	}
	m.mutable, m.immutable = nil, nil
	m.sid = m.begin()
}

// check runs after every operation.
func (m *handleTwin) check(*rapid.T) {
	m.testPool.check()
	st := m.Stats()
	if st.Host.Granted != len(m.mutable) || st.Pins != len(m.immutable) {
		m.t.Errorf("%d granted and %d pins, want %d and %d", st.Host.Granted, st.Pins, len(m.mutable), len(m.immutable))
	}
	for _, h := range m.immutable {
		if !h.handle.Valid() || h.handle.Block() != h.block || !m.committed[h.block.Key] ||
			!bytes.Equal(h.handle.Data(), m.content(&h.block, 0)) {
			m.t.Errorf("a handle to %s is not to what was registered", h.block.Key)
		}
	}
}

func TestHandlesAreWhatTheirTwinSays(t *testing.T) {
	for name, diskSlots := range map[string]uint64{"host only": 0, "host and disk": 16} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				dir, err := os.MkdirTemp("", "blockmgr-handles-")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(dir)
				m := &handleTwin{
					testPool: openTestPool(t, Config{
						HostDir: dir + "/host", HostBytes: hostBytes(9), DiskDir: dir + "/disk", DiskBytes: diskSlots * testSlotBytes,
						IODeadline: time.Minute,
					}),
					committed: map[kv.StoredKey]bool{},
				}
				defer m.finish()
				t.Repeat(map[string]func(*rapid.T){
					"Allocate": m.Allocate, "Step": m.Step, "Again": m.Step, "Register": m.Register, "Match": m.Match,
					"Bring": m.Bring, "BringMore": m.Bring, "AfterRelease": m.AfterRelease,
					"ReleaseMutable": m.ReleaseMutable, "ReleaseImmutable": m.ReleaseImmutable, "Reset": m.Reset,
					"ResetBlocks": m.ResetBlocks, "Prefetch": m.Prefetch, "Recall": m.Recall, "EndSession": m.EndSession, "": m.check,
				})
				m.quiesce()
			})
		})
	}
}
