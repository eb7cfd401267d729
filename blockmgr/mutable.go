package blockmgr

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// MutableBlock is a host slot that belongs to one session and becomes a block:
// its holder fills Data, gives it an identity and registers it. Until then
// nobody else sees it. The slot is the holder's until Release, Register or the
// end of the session; a handle whose slot is gone is harmless and of no use.
//
// It is not safe for concurrent use.
type MutableBlock struct {
	pool    *Pool
	session SessionID
	sess    *session
	slot    Slot

	state    BlockState
	released bool
	// block is the identity as far as it is known: what does not depend on the
	// tokens in a partial block, all of it later.
	block    Block
	tokens   []uint32
	priority uint32
}

// State is how far the block has come.
func (b *MutableBlock) State() BlockState { return b.state }

// Slot names the block's slot, for clients that write to the extent's file.
func (b *MutableBlock) Slot() Slot { return b.slot }

// Block is the block's identity; ok is false before it is complete.
func (b *MutableBlock) Block() (identity Block, ok bool) {
	if b.state < BlockComplete {
		return Block{}, false
	}
	return b.block, true
}

// Tokens are the tokens so far. The slice is the block's until it is reset or
// registered, after which there are none.
func (b *MutableBlock) Tokens() []uint32 { return b.tokens }

// Remaining is how many tokens a partial block lacks, 0 in every other state.
func (b *MutableBlock) Remaining() int {
	if b.state != BlockPartial {
		return 0
	}
	return b.blockSize() - len(b.tokens)
}

// SetPriority is the priority that the block will be registered with, 0 after
// Allocate and Reset: blocks of a lower one are evicted first.
func (b *MutableBlock) SetPriority(priority uint32) { b.priority = priority }

// InitSequence makes an empty block the first one of a sequence.
func (b *MutableBlock) InitSequence(root Root) error {
	return b.init("begin a sequence", firstBlock(root))
}

// InitAfter makes an empty block the one that follows parent, which need not be
// registered yet.
func (b *MutableBlock) InitAfter(parent Block) error {
	return b.init("continue a sequence", nextBlock(&parent))
}

func (b *MutableBlock) init(what string, begun Block) error {
	if err := b.check(what, BlockReset); err != nil {
		return err
	}
	b.block, b.state = begun, BlockPartial
	return nil
}

// AddTokens appends tokens to a partial block and returns those for which it has
// no room, which still lie in the caller's slice.
func (b *MutableBlock) AddTokens(tokens []uint32) (left []uint32, err error) {
	if err := b.check("add tokens", BlockPartial); err != nil {
		return tokens, err
	}
	n := min(b.Remaining(), len(tokens))
	b.tokens = append(b.tokens, tokens[:n]...)
	return tokens[n:], nil
}

// PopTokens takes the last n tokens off a partial block. It takes none when
// there are fewer (ErrTokens).
func (b *MutableBlock) PopTokens(n int) error {
	if err := b.check("take tokens off", BlockPartial); err != nil {
		return err
	}
	if n < 0 || n > len(b.tokens) {
		return fmt.Errorf("take %d tokens off a block: want 0 to %d: %w", n, len(b.tokens), ErrTokens)
	}
	b.tokens = b.tokens[:len(b.tokens)-n]
	return nil
}

// Commit completes a partial block that has all its tokens (else ErrTokens): its
// identity is computed.
func (b *MutableBlock) Commit() error {
	if err := b.check("commit", BlockPartial); err != nil {
		return err
	}
	if left := b.Remaining(); left > 0 {
		return fmt.Errorf("commit a block of %d tokens: want %d: %w", len(b.tokens), b.blockSize(), ErrTokens)
	}
	b.block, b.state = NewIdentifier().complete(b.block, b.tokens), BlockComplete
	return nil
}

// ApplyTokenBlock completes an empty block with an identity that is known. The
// tokens are copied; their number must be the block size (else ErrTokens).
func (b *MutableBlock) ApplyTokenBlock(tb TokenBlock) error {
	if err := b.check("apply a token block", BlockReset); err != nil {
		return err
	}
	if len(tb.Tokens) != b.blockSize() {
		return fmt.Errorf("apply a block of %d tokens: want %d: %w", len(tb.Tokens), b.blockSize(), ErrTokens)
	}
	b.block, b.tokens, b.state = tb.Block, slices.Clone(tb.Tokens), BlockComplete
	return nil
}

// Reset takes tokens, identity and priority from a block that is not registered.
// The slot and its bytes stay.
func (b *MutableBlock) Reset() error {
	if b.state == BlockRegistered || b.released {
		return b.check("reset", BlockReset, BlockPartial, BlockComplete)
	}
	b.clear()
	b.priority = 0
	return nil
}

// Data is the slot's memory, BlockBytes long and full of what was there before;
// nil when the slot is not the block's any more. It must not be touched after
// Release, Register, the end of the session or Manager.Close.
func (b *MutableBlock) Data() []byte {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	ref, ok := b.heldLocked()
	if !ok {
		return nil
	}
	return b.pool.dataLocked(ref)
}

// Release gives the slot back without a block. A second one does nothing, and
// so does one of a block that is registered.
func (b *MutableBlock) Release() {
	p := b.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if ref, ok := b.heldLocked(); ok {
		b.sess.settle(ref)
		p.slots.DropGrant(ref, storage.StateFree)
		p.count.Aborted++
	}
	if b.state != BlockRegistered {
		b.clear()
		b.released = true
	}
}

// clear forgets the identity.
func (b *MutableBlock) clear() { b.block, b.tokens, b.state = Block{}, nil, BlockReset }

func (b *MutableBlock) blockSize() int { return int(b.pool.ns.BlockSize) }

// check refuses an operation that needs the block to be in one of some states.
func (b *MutableBlock) check(what string, want ...BlockState) error {
	switch {
	case b.released:
		return fmt.Errorf("%s of a block that was released: %w", what, ErrBadSlot)
	case !slices.Contains(want, b.state):
		return fmt.Errorf("%s of a %s block: want %v: %w", what, b.state, want, ErrBlockState)
	}
	return nil
}

// heldLocked is the block's slot while it is the session's and has no block yet.
func (b *MutableBlock) heldLocked() (registry.Ref, bool) {
	p := b.pool
	if p.life.closed || p.members.sessions[b.session] != b.sess {
		return registry.NoRef, false
	}
	ref, ok := p.findLocked(b.slot)
	if ok {
		_, ok = b.sess.granted[ref]
	}
	return ref, ok
}

// dataLocked is the memory of a host slot's block.
func (p *Pool) dataLocked(ref registry.Ref) []byte {
	part, i := p.slots.Host.At(ref)
	return part.Host.Slot(i)[:p.blockBytes:p.blockBytes]
}
