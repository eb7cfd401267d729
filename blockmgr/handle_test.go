package blockmgr

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestEveryTransitionOutsideTheLifecycleNamesBothStates(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(64)})
	full := TokenBlock{Block: chain(7, 1)[0], Tokens: blockTokens(0)}
	for _, op := range []struct {
		name string
		do   func(*MutableBlock) error
		// to is the state after the operation, for each state that allows it.
		to map[BlockState]BlockState
	}{
		{"init", func(b *MutableBlock) error { return b.InitSequence(Root{}) }, map[BlockState]BlockState{BlockReset: BlockPartial}},
		{"init after", func(b *MutableBlock) error { return b.InitAfter(Block{}) }, map[BlockState]BlockState{BlockReset: BlockPartial}},
		{"add", func(b *MutableBlock) error { _, err := b.AddTokens([]uint32{1}); return err }, map[BlockState]BlockState{BlockPartial: BlockPartial}},
		{"pop", func(b *MutableBlock) error { return b.PopTokens(0) }, map[BlockState]BlockState{BlockPartial: BlockPartial}},
		{"apply", func(b *MutableBlock) error { return b.ApplyTokenBlock(full) }, map[BlockState]BlockState{BlockReset: BlockComplete}},
		{"reset", (*MutableBlock).Reset, map[BlockState]BlockState{BlockReset: BlockReset, BlockPartial: BlockReset, BlockComplete: BlockReset}},
		{"commit", func(b *MutableBlock) error {
			if b.State() == BlockPartial {
				_, _ = b.AddTokens(blockTokens(0))
			}
			return b.Commit()
		}, map[BlockState]BlockState{BlockPartial: BlockComplete}},
		{"register", func(b *MutableBlock) error {
			handles, err := p.Register(p.sid, []*MutableBlock{b})
			release(handles)
			return err
		}, map[BlockState]BlockState{BlockComplete: BlockRegistered}},
	} {
		for from := range BlockState(numBlockStates) {
			b := p.inState(from)
			err := op.do(b)
			to, allowed := op.to[from]
			switch {
			case allowed && (err != nil || b.State() != to):
				t.Errorf("%s of a %s block: %v, now %s", op.name, from, err, b.State())
			case !allowed && (!errors.Is(err, ErrBlockState) || b.State() != from || !strings.Contains(err.Error(), from.String()+" block")):
				t.Errorf("%s of a %s block: %v, now %s", op.name, from, err, b.State())
			}
			for want := range op.to {
				if !allowed && !strings.Contains(fmt.Sprint(err), want.String()) {
					t.Errorf("%s of a %s block: %v does not name %s", op.name, from, err, want)
				}
			}
			b.Release()
		}
	}
	if st := p.Stats(); st.Host.Granted != 0 {
		t.Errorf("%d slots are granted after all handles were released", st.Host.Granted)
	}
	p.EndSession(p.sid, nil)
	p.quiesce()
}

func TestBlockTakesAsManyTokensAsItHasRoomFor(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	b := p.allocate(1)[0]
	if b.Remaining() != 0 || b.Tokens() != nil {
		t.Errorf("an empty block lacks %d tokens and has %v", b.Remaining(), b.Tokens())
	}
	if err := b.InitSequence(Root{}); err != nil {
		t.Fatal(err)
	}
	tokens := blockTokens(1)
	if left, err := b.AddTokens(tokens[:10]); err != nil || len(left) != 0 || b.Remaining() != 6 {
		t.Errorf("left %v, %v, lacks %d", left, err, b.Remaining())
	}
	if err := b.Commit(); !errors.Is(err, ErrTokens) || b.State() != BlockPartial {
		t.Errorf("commit of 10 tokens: %v", err)
	}
	if err := b.PopTokens(11); !errors.Is(err, ErrTokens) || len(b.Tokens()) != 10 {
		t.Errorf("11 of 10 tokens taken: %v", err)
	}
	if err := b.PopTokens(2); err != nil || b.Remaining() != 8 {
		t.Errorf("2 of 10 tokens taken: %v, lacks %d", err, b.Remaining())
	}
	left, err := b.AddTokens(append(tokens[8:16:16], 91, 92))
	if err != nil || !slices.Equal(left, []uint32{91, 92}) || !slices.Equal(b.Tokens(), tokens) {
		t.Errorf("left %v, %v, has %v", left, err, b.Tokens())
	}
	if _, ok := b.Block(); ok {
		t.Error("a partial block has an identity")
	}
	if err := b.Commit(); err != nil || b.Remaining() != 0 {
		t.Errorf("commit: %v", err)
	}
	short := TokenBlock{Block: chain(1, 1)[0], Tokens: tokens[:15]}
	if err := p.allocate(1)[0].ApplyTokenBlock(short); !errors.Is(err, ErrTokens) {
		t.Errorf("a block of 15 tokens: %v", err)
	}
}

// The identity is a contract with stored bytes and with the routers that hear of
// them, however a block comes by it.
func TestCommittedIdentityIsTheChainOfKeysAndHashes(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	id := NewIdentifier()
	root := id.Root(p.NamespaceID(), "adapter-fingerprint", "adapter", "tenant")
	if want := kv.NewKeyer().Root(p.NamespaceID(), "adapter-fingerprint", "tenant"); root.Key != want || root.Seed != kv.LocalSeed("adapter", "tenant") {
		t.Errorf("root %v", root)
	}
	first, second := blockTokens(1), blockTokens(100)
	blocks := p.allocate(2)
	for i, init := range []func() error{
		func() error { return blocks[0].InitSequence(root) },
		func() error { parent, _ := blocks[0].Block(); return blocks[1].InitAfter(parent) },
	} {
		if err := init(); err != nil {
			t.Fatal(err)
		}
		if _, err := blocks[i].AddTokens([][]uint32{first, second}[i]); err != nil {
			t.Fatal(err)
		}
		if err := blocks[i].Commit(); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := blocks[0].Block()
	b, _ := blocks[1].Block()
	if wantA := id.First(root, first); a != wantA || b != id.Next(&wantA, second) {
		t.Errorf("%+v and %+v are not what Identifier says", a, b)
	}
	var hasher kv.Hasher
	locals := []kv.LocalHash{hasher.Local(first, root.Seed, nil), hasher.Local(second, root.Seed, nil)}
	seqs := kv.AppendSequence(nil, locals)
	keyA := kv.NewKeyer().Next(root.Key, first, nil)
	keyB := kv.NewKeyer().Next(keyA, second, nil)
	wantA := Block{Key: keyA.InGroup(0), Parent: root.Key, Local: locals[0], Seq: seqs[0], Seed: root.Seed}
	wantB := Block{
		Key: keyB.InGroup(0), Parent: keyA, Local: locals[1], Seq: seqs[1], ParentSeq: seqs[0], Position: 1, Seed: root.Seed,
	}
	if a != wantA || b != wantB {
		t.Errorf("got %+v and %+v, want %+v and %+v", a, b, wantA, wantB)
	}
	handles, err := p.Register(p.sid, blocks)
	if err != nil || handles[0].Block() != wantA || handles[1].Key() != wantB.Key {
		t.Fatalf("registered: %v", err)
	}
	release(handles)
	p.quiesce()
}

func TestSecondReleaseIsHarmless(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(2)})
	old := p.allocate(1)[0]
	slot := old.Slot()
	old.Release()
	if old.Data() != nil || old.InitSequence(Root{}) == nil || !errors.Is(old.Reset(), ErrBadSlot) {
		t.Error("a released block can be used")
	}
	again := p.allocate(1)[0]
	if again.Slot().Index != slot.Index || again.Slot().Generation == slot.Generation {
		t.Fatalf("slot %+v after %+v", again.Slot(), slot)
	}
	old.Release()
	if st := p.Stats(); st.Host.Granted != 1 || st.Aborted != 1 || again.Data() == nil {
		t.Errorf("a second release took somebody else's slot: %+v", st.Host)
	}
	again.Release()

	handle := p.register(chain(1, 1))[0]
	other := p.match(t, chain(1, 1))[0]
	handle.Release()
	handle.Release()
	if st := p.Stats(); st.Pins != 1 || handle.Valid() || handle.Data() != nil || !other.Valid() {
		t.Errorf("%d pins after two releases of one of two handles", st.Pins)
	}
	other.Release()
	p.quiesce()
}

func TestHandlesEndWithTheirSession(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	blocks := chain(1, 2)
	handle := p.register(blocks)[0]
	complete, empty := p.allocate(1)[0], p.allocate(1)[0]
	p.prepare([]*MutableBlock{complete}, chain(2, 1))
	p.EndSession(p.sid, nil)
	if handle.Valid() || handle.Data() != nil || complete.Data() != nil || empty.Data() != nil {
		t.Error("a handle outlives its session")
	}
	other := p.begin()
	if _, err := p.Register(p.sid, []*MutableBlock{complete}); !errors.Is(err, ErrNoSession) {
		t.Errorf("registered for a session that has ended: %v", err)
	}
	if _, err := p.Register(other, []*MutableBlock{complete}); !errors.Is(err, ErrBadSlot) {
		t.Errorf("registered for another session: %v", err)
	}
	for _, h := range []interface{ Release() }{handle, complete, empty} {
		h.Release()
	}
	if st := p.Stats(); st.Host.Granted != 0 || st.Pins != 0 {
		t.Errorf("%+v", st)
	}
	p.quiesce()
}

func TestSlotOfAHandleWaitsForTheWriterOfADyingSession(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(2)})
	p.allocate(1)
	gone := make(chan struct{})
	p.EndSession(p.sid, gone)
	if st := p.Stats(); st.Host.Quarantined != 1 || st.Host.Free != 1 {
		t.Errorf("%+v", st.Host)
	}
	p.check()
	close(gone)
	waitFor(t, func() bool { return p.Stats().Host.Free == 2 })
}

// A slot granted without a block says so in its record, and the next agent keeps
// it out of use like any other.
func TestSlotsOfHandlesOutliveTheAgentUntilTheirProcessesAreGone(t *testing.T) {
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(4), DiskDir: t.TempDir()}
	first := openTestPool(t, cfg)
	slot := first.allocate(1)[0].Slot()
	first.m.Abandon()
	second, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	p, err := second.Pool(testNamespace("test"))
	if err != nil {
		t.Fatal(err)
	}
	if st := p.Stats(); st.Host.Quarantined != 1 || st.PreviousSessions != 1 {
		t.Errorf("%+v", st.Host)
	}
	if err := p.BeginSession(2); err != nil {
		t.Fatal(err)
	}
	granted, _, err := p.Resume(2, first.sid, []Slot{slot}, nil)
	if err != nil || !slices.Equal(granted, []Slot{slot}) || p.Stats().Host.Free != 3 {
		t.Errorf("what somebody says to be writing is free: %v, %v", granted, err)
	}
	if err := p.Commit(2, granted); err != nil {
		t.Error(err)
	}
	if st := p.Stats(); st.Host.Free != 4 || st.Blocks != 0 {
		t.Errorf("%+v", st.Host)
	}
}

func TestTouchStopsAtTheFirstBlockThatIsNotThere(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8)})
	blocks := chain(1, 4)
	release(p.register(append(blocks[:2:2], blocks[3])))
	var keys []kv.StoredKey
	for _, b := range blocks {
		keys = append(keys, b.Key)
	}
	if n := p.Touch(keys); n != 2 {
		t.Errorf("%d blocks touched, want the two before the hole", n)
	}
	if n := p.Touch(keys[3:]); n != 1 {
		t.Errorf("%d blocks touched, want 1", n)
	}
	p.quiesce()
}

func TestHandlesOfAPoolThatIsOffOrClosed(t *testing.T) {
	off := newTestPool(t, Config{})
	if _, err := off.Allocate(off.sid, 1); !errors.Is(err, ErrNotEnoughBlocks) {
		t.Errorf("allocate without tiers: %v", err)
	}
	p := openTestPool(t, Config{HostDir: t.TempDir(), HostBytes: hostBytes(4)})
	b, handle := p.allocate(1)[0], p.register(chain(1, 1))[0]
	p.finish()
	if b.Data() != nil || handle.Data() != nil || handle.Valid() {
		t.Error("a handle has memory after Close")
	}
	b.Release()
	handle.Release()
	for name, err := range map[string]error{
		"allocate": second(p.Allocate(p.sid, 1)), "register": second(p.Register(p.sid, []*MutableBlock{b})),
		"match": second(p.Match(t.Context(), p.sid, chain(1, 1))),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p.Touch([]kv.StoredKey{handle.Key()}) != 0 || p.Prefetch(chain(1, 1)) != 0 {
		t.Error("a closed pool does something")
	}
}

func second[T any](_ T, err error) error { return err }
