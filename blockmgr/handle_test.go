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
	noError(t, b.InitSequence(Root{}))
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
		noError(t, init())
		if _, err := blocks[i].AddTokens([][]uint32{first, second}[i]); err != nil {
			t.Fatal(err)
		}
		noError(t, blocks[i].Commit())
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

func TestPriorityIsZeroAfterAllocationAndAfterReset(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(2)})
	high := p.allocate(1)[0]
	high.SetPriority(9)
	noError(t, high.Reset())
	other := p.allocate(1)[0]
	other.SetPriority(4) // it ages with every two blocks
	p.prepare([]*MutableBlock{high, other}, []Block{chain(1, 1)[0], chain(2, 1)[0]})
	// The one that was reset is registered later and yet goes first.
	for _, b := range []*MutableBlock{other, high} {
		handles, err := p.Register(p.sid, []*MutableBlock{b})
		if err != nil {
			t.Fatal(err)
		}
		release(handles)
	}
	p.quiesce()
	again := p.allocate(1)[0]
	if got := p.tiersOf([]Block{chain(1, 1)[0], chain(2, 1)[0]}); got != "-H" {
		t.Errorf("resident %q", got)
	}
	p.prepare([]*MutableBlock{again}, chain(3, 1))
	handles, err := p.Register(p.sid, []*MutableBlock{again})
	if err != nil {
		t.Fatal(err)
	}
	release(handles)
	p.quiesce()
	p.allocate(1)
	if got := p.tiersOf([]Block{chain(3, 1)[0], chain(2, 1)[0]}); got != "-H" {
		t.Errorf("a slot passes its priority on: resident %q", got)
	}
}
