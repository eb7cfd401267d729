package blockmgr

import (
	"bytes"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

// blockTokens are the tokens of one block of testNamespace.
func blockTokens(first uint32) []uint32 {
	tokens := make([]uint32, 16)
	for i := range tokens {
		tokens[i] = first + uint32(i)
	}
	return tokens
}

// allocate is Allocate for the pool's own session, which must succeed.
func (p *testPool) allocate(n int) []*MutableBlock {
	p.t.Helper()
	blocks, err := p.Allocate(p.sid, n)
	if err != nil {
		p.t.Fatalf("allocate: %v", err)
	}
	return blocks
}

// prepare fills allocated blocks with identities and bytes.
func (p *testPool) prepare(allocated []*MutableBlock, blocks []Block) {
	p.t.Helper()
	for i, b := range allocated {
		if err := b.ApplyTokenBlock(TokenBlock{Block: blocks[i], Tokens: blockTokens(0)}); err != nil {
			p.t.Fatalf("apply: %v", err)
		}
		copy(b.Data(), p.content(&blocks[i], 0))
	}
}

// register brings blocks in through handles.
func (p *testPool) register(blocks []Block) []*ImmutableBlock {
	p.t.Helper()
	allocated := p.allocate(len(blocks))
	p.prepare(allocated, blocks)
	handles, err := p.Register(p.sid, allocated)
	if err != nil {
		p.t.Fatalf("register: %v", err)
	}
	return handles
}

// match is Match for the pool's own session; the bytes of what it finds must be right.
func (p *testPool) match(t *testing.T, blocks []Block) []*ImmutableBlock {
	t.Helper()
	handles, err := p.Match(t.Context(), p.sid, blocks)
	if err != nil {
		t.Fatalf("match: %v", err)
	}
	for i, h := range handles {
		if h.Block() != blocks[i] || !bytes.Equal(h.Data(), p.content(&blocks[i], 0)) {
			t.Errorf("block %d of the match is not what was stored", i)
		}
	}
	return handles
}

func release[H interface{ Release() }](handles []H) {
	for _, h := range handles {
		h.Release()
	}
}

// inState is a block that has come that far.
func (p *testPool) inState(s BlockState) *MutableBlock {
	p.t.Helper()
	b := p.allocate(1)[0]
	var err error
	switch s {
	case BlockPartial:
		err = b.InitSequence(Root{})
	case BlockComplete:
		p.prepare([]*MutableBlock{b}, chain(7, 1))
	case BlockRegistered:
		p.prepare([]*MutableBlock{b}, chain(8, 1))
		_, err = p.Register(p.sid, []*MutableBlock{b})
	}
	if err != nil || b.State() != s {
		p.t.Fatalf("a %s block: is %s, %v", s, b.State(), err)
	}
	return b
}

// stallReads holds reads of the disk's blocks back at a gate.
func stallReads(gate *storagetest.Gate) func(string, extent.File) extent.File {
	return func(path string, f extent.File) extent.File {
		if strings.HasSuffix(path, ".table") {
			return f
		}
		return &storagetest.Faulty{File: f, Gate: gate, Plan: func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpRead {
				return storagetest.FaultStall
			}
			return storagetest.FaultNone
		}}
	}
}

// matched is how many blocks a match finds, which it lets go again.
func (p *testPool) matched(t *testing.T, blocks []Block) int {
	t.Helper()
	handles := p.match(t, blocks)
	release(handles)
	return len(handles)
}
