package engine

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// naiveBlocks is what a request's blocks must be, computed from all its tokens
// at once.
func naiveBlocks(ns *kv.Namespace, m *proto.Open, tokens []uint32) []blockmgr.Block {
	size := int(ns.BlockSize)
	keyer, hasher := kv.NewKeyer(), kv.Hasher{}
	seed := kv.LocalSeed(m.LoRAName, m.Salt)
	locals := hasher.AppendLocals(nil, tokens, size, seed)
	seqs := kv.AppendSequence(nil, locals)
	key := keyer.Root(ns.ID(), m.LoRA, m.Salt)
	var blocks []blockmgr.Block
	for i := range locals {
		b := blockmgr.Block{Parent: key, Local: locals[i], Seq: seqs[i], Position: uint32(i), Seed: seed}
		if i > 0 {
			b.ParentSeq = seqs[i-1]
		}
		key = keyer.Next(key, tokens[i*size:(i+1)*size], nil)
		b.Key = key.InGroup(0)
		blocks = append(blocks, b)
	}
	return blocks
}

func TestBlocksDoNotDependOnHowTokensArrive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := agenttest.Namespace()
		ns.BlockSize = uint32(rapid.IntRange(1, 9).Draw(t, "block size"))
		m := &proto.Open{
			LoRA: rapid.StringN(0, 3, -1).Draw(t, "lora"), LoRAName: rapid.StringN(0, 3, -1).Draw(t, "lora name"),
			Salt: rapid.StringN(0, 3, -1).Draw(t, "salt"),
		}
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 60).Draw(t, "tokens")
		c := newChain(&ns, noTokens, noOwner)
		r := c.open(m)
		for rest := tokens; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			c.add(r, rest[:n])
			rest = rest[n:]
		}
		if d := cmp.Diff(naiveBlocks(&ns, m, tokens), r.blocks); d != "" {
			t.Fatalf("blocks (-want +got):\n%s", d)
		}
		if r.tokens != len(tokens) || len(r.tail) != len(tokens)%int(ns.BlockSize) {
			t.Fatalf("%d tokens, %d in the tail", r.tokens, len(r.tail))
		}
	})
}

func TestTokensAreBounded(t *testing.T) {
	ns := agenttest.Namespace()
	s := &session{chain: newChain(&ns, noTokens, noOwner), requests: map[uint64]*request{}, superseded: map[requestName]*request{}, cfg: &Config{MaxRequests: 10, NoPrefetch: true}}
	agenttest.NoError(t, s.open(&proto.Open{Request: 1}))
	piece := make([]byte, 4*4096)
	var err error
	var n int
	for err == nil {
		err = s.append(&proto.Append{Request: 1, Offset: uint32(n), Tokens: piece})
		n += 4096
	}
	if r := refusalOf(err); r.Code != proto.CodeLimit || n != proto.MaxTokens+4096 {
		t.Errorf("after %d tokens: got error %v, want %s after %d", n, err, proto.CodeLimit, proto.MaxTokens+4096)
	}
	if _, err := s.find(1, 0); err == nil {
		t.Error("the request can still be used")
	}
}

// A request gives its pins back block by block: each release looks at its own range and
// not at all pins of the request.
func TestReleaseLooksAtItsRangeOnly(t *testing.T) {
	const blocks = 1000
	r := &request{pins: map[blockName]pin{}}
	fill := func() {
		for i := range uint32(blocks) {
			r.pins[blockName{3, i}] = pin{slot: blockmgr.Slot{Index: i}}
		}
	}
	fill()
	steps := 0
	for i := range uint64(blocks) {
		for range r.pinnable(3, i, i+1) {
			steps++
		}
		if got := r.dropPinsLocked(3, i, i+1); len(got) != 1 || got[0].Index != uint32(i) {
			t.Fatalf("release of block %d gave %v", i, got)
		}
	}
	if steps != blocks || len(r.pins) != 0 {
		t.Errorf("%d steps for %d blocks, %d pins left", steps, blocks, len(r.pins))
	}
	fill()
	if got := r.dropPinsLocked(3, 500, math.MaxUint64); len(got) != 500 || len(r.pins) != 500 {
		t.Errorf("%d slots released, %d pins left", len(got), len(r.pins))
	}
	if got := r.dropPinsLocked(3, 0, 0); len(got) != 0 {
		t.Errorf("%d slots released by an empty range", len(got))
	}
	if got := append(r.dropPinsLocked(2, 0, math.MaxUint64), r.dropPinsLocked(4, 0, 1)...); len(got) != 0 {
		t.Errorf("%d slots released in other groups", len(got))
	}
	if got := r.dropAllPinsLocked(); len(got) != 500 || len(r.pins) != 0 {
		t.Errorf("%d slots released with all pins, %d pins left", len(got), len(r.pins))
	}
}

// noTokens is a sink of tokens that nobody wants.
func noTokens() tokens.Sink { return nil }
