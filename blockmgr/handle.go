package blockmgr

import (
	"errors"
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// BlockState is the state of a MutableBlock:
//
//	Reset ─InitSequence─► Partial ─Commit─► Complete ─Register─► Registered
//	  │                                        ▲
//	  └───────────ApplyTokenBlock──────────────┘
//
// Reset leads back from Partial and Complete.
type BlockState uint8

const (
	// BlockReset: the block has a slot and no identity.
	BlockReset BlockState = iota
	// BlockPartial: the block belongs to a sequence and collects its tokens.
	BlockPartial
	// BlockComplete: the block's tokens are complete and its identity is known.
	BlockComplete
	// BlockRegistered: the block is in the pool; its ImmutableBlock has its slot.
	BlockRegistered

	numBlockStates = iota
)

// String returns the state's name in errors.
func (s BlockState) String() string {
	names := [numBlockStates]string{"reset", "partial", "complete", "registered"}
	if s >= numBlockStates {
		return fmt.Sprintf("block state %d", uint8(s))
	}
	return names[s]
}

// Errors of the block lifecycle that callers tell apart with errors.Is.
var (
	// ErrBlockState: the block is in a state in which the operation is not allowed. The
	// text names the state and the allowed ones.
	ErrBlockState = errors.New("block is in the wrong state")
	// ErrTokens: the operation needs another number of tokens. The text has the number.
	ErrTokens = errors.New("wrong number of tokens")
	// ErrNotEnoughBlocks: fewer slots are available than were asked for. The text has both
	// numbers.
	ErrNotEnoughBlocks = errors.New("not enough blocks")
	// ErrNoBlocks: the call needs at least one block and was given none.
	ErrNoBlocks = errors.New("no blocks given")
	// ErrFilling: another session fills a block of the same key, or the pool reads it from
	// disk. A later try succeeds: a granted slot loses its block after 5 s.
	ErrFilling = errors.New("block is being filled by another session")
	// ErrPins: the session would have more pins than Config.MaxPinsPerSession.
	ErrPins = errors.New("too many pins")
)

// TokenBlock is a block whose identity is known already. The caller vouches that the
// tokens have this identity; see Identifier.
type TokenBlock struct {
	Block Block
	// Tokens are as many as the namespace's block size.
	Tokens []uint32
}

// MutableBlock is a host slot that belongs to one session and becomes a block: its owner fills
// Data, gives it an identity and registers it. No other session sees it before. The slot is the
// owner's until Release, Register or the end of the session. After that the methods change nothing.
//
// A MutableBlock is not safe for concurrent use.
type MutableBlock struct {
	pool    *Pool
	session SessionID
	sess    *session
	slot    Slot

	state    BlockState
	released bool
	// block is the identity. In a partial block it lacks the key and the hashes.
	block    Block
	tokens   []uint32
	priority uint32
}

// State returns the block's state.
func (b *MutableBlock) State() BlockState { return b.state }

// Slot names the block's slot, for clients that write to the extent's file.
func (b *MutableBlock) Slot() Slot { return b.slot }

// Block returns the block's identity; ok is false before it is complete.
func (b *MutableBlock) Block() (identity Block, ok bool) {
	if b.state < BlockComplete {
		return Block{}, false
	}
	return b.block, true
}

// Tokens returns the tokens so far, none once the block is reset or registered. The slice is
// the block's.
func (b *MutableBlock) Tokens() []uint32 { return b.tokens }

// Remaining returns how many tokens a partial block lacks, 0 in every other state.
func (b *MutableBlock) Remaining() int {
	if b.state != BlockPartial {
		return 0
	}
	return b.blockSize() - len(b.tokens)
}

// SetPriority sets the priority that the block is registered with. It is 0 after Allocate
// and Reset. Blocks of a lower priority are evicted first.
func (b *MutableBlock) SetPriority(priority uint32) { b.priority = priority }

// InitSequence makes an empty block the first one of a sequence.
func (b *MutableBlock) InitSequence(root Root) error {
	return b.init("begin a sequence", firstBlock(root))
}

// InitAfter makes an empty block the one after parent, which need not be registered yet.
func (b *MutableBlock) InitAfter(parent Block) error {
	return b.init("continue a sequence", nextBlock(&parent))
}

// init makes an empty block partial, with the identity begun. what names the operation in errors.
func (b *MutableBlock) init(what string, begun Block) error {
	if err := b.check(what, BlockReset); err != nil {
		return err
	}
	b.block, b.state = begun, BlockPartial
	b.markOwner()
	return nil
}

// AddTokens appends tokens to a partial block. left are the tokens that do not fit, in
// the caller's slice.
func (b *MutableBlock) AddTokens(tokens []uint32) (left []uint32, err error) {
	if err := b.check("add tokens", BlockPartial); err != nil {
		return tokens, err
	}
	n := min(b.Remaining(), len(tokens))
	b.tokens = append(b.tokens, tokens[:n]...)
	return tokens[n:], nil
}

// PopTokens removes the last n tokens of a partial block. ErrTokens: the block has fewer tokens
// and keeps them.
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

// Commit completes a partial block: it computes the identity. ErrTokens: tokens are
// missing.
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

// ApplyTokenBlock completes an empty block with an identity that is known. It copies the
// tokens. ErrTokens: their number is not the block size.
func (b *MutableBlock) ApplyTokenBlock(tb TokenBlock) error {
	if err := b.check("apply a token block", BlockReset); err != nil {
		return err
	}
	if len(tb.Tokens) != b.blockSize() {
		return fmt.Errorf("apply a block of %d tokens: want %d: %w", len(tb.Tokens), b.blockSize(), ErrTokens)
	}
	b.block, b.tokens, b.state = tb.Block, slices.Clone(tb.Tokens), BlockComplete
	b.markOwner()
	return nil
}

// markOwner notes the block's tenant at the slot: the block's bytes may be there, registered or not.
func (b *MutableBlock) markOwner() {
	if b.block.Owner == 0 {
		return
	}
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	if ref, ok := b.heldLocked(); ok {
		b.pool.slots.MarkSlot(ref, b.block.Owner)
	}
}

// Reset clears the tokens, identity and priority of a block that is not registered. The
// slot and its bytes stay. ErrBlockState: the block is registered. ErrBadSlot: it is released.
func (b *MutableBlock) Reset() error {
	if b.state == BlockRegistered || b.released { // check returns the error
		return b.check("reset", BlockReset, BlockPartial, BlockComplete)
	}
	b.clear()
	b.priority = 0
	return nil
}

// Data returns the slot's memory, BlockBytes long, with what was there before. It is nil when
// the slot is not the block's any more. The slice must not be touched after Release,
// Register, the end of the session or Manager.Close.
func (b *MutableBlock) Data() []byte {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	ref, ok := b.heldLocked()
	if !ok {
		return nil
	}
	return b.pool.dataLocked(ref)
}

// Release frees the slot. It does nothing for a released or registered block.
func (b *MutableBlock) Release() {
	p := b.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if ref, ok := b.heldLocked(); ok {
		b.sess.endGrant(ref)
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

// check returns an error unless the block is in one of the wanted states. The error wraps
// ErrBadSlot for a released block, else ErrBlockState. what names the operation in the error.
func (b *MutableBlock) check(what string, want ...BlockState) error {
	switch {
	case b.released:
		return fmt.Errorf("%s of a block that was released: %w", what, ErrBadSlot)
	case !slices.Contains(want, b.state):
		return fmt.Errorf("%s of a %s block: want %v: %w", what, b.state, want, ErrBlockState)
	}
	return nil
}

// heldLocked returns the block's slot. held is false when the slot is no longer granted to the
// session: the slot was released or committed, or the session has ended.
func (b *MutableBlock) heldLocked() (ref registry.Ref, held bool) {
	p := b.pool
	if p.life.closed || p.members.sessions[b.session] != b.sess {
		return registry.NoRef, false
	}
	ref, held = p.findLocked(b.slot)
	if held {
		_, held = b.sess.granted[ref]
	}
	return ref, held
}

// dataLocked returns the memory of a host slot's block.
func (p *Pool) dataLocked(ref registry.Ref) []byte {
	e, i := p.slots.Host.At(ref)
	return e.Host.Slot(i)[:p.blockBytes:p.blockBytes]
}

// ImmutableBlock is one pin of a block in host memory. The block stays there until
// Release or the end of the session. Several handles may have the same block. An
// ImmutableBlock is safe for concurrent use.
type ImmutableBlock struct {
	pool    *Pool
	session SessionID
	sess    *session
	slot    Slot
	block   Block
	// released is guarded by pool.mu.
	released bool
}

// Key returns the block's key.
func (b *ImmutableBlock) Key() kv.StoredKey { return b.block.Key }

// Block returns the block's identity, to name it to Lookup or to put another block
// after it.
func (b *ImmutableBlock) Block() Block { return b.block }

// Slot names the slot that the block is in.
func (b *ImmutableBlock) Slot() Slot { return b.slot }

// Data returns the block's bytes in the slot, which nobody may change. It returns nil when the
// handle is not Valid. The slice must not be used after Release, the end of the session or
// Manager.Close.
func (b *ImmutableBlock) Data() []byte {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	ref, ok := b.pinnedLocked()
	if !ok || !b.pool.slots.Host.Slot(ref).Resident() {
		return nil
	}
	return b.pool.dataLocked(ref)
}

// Valid reports whether the handle still has its block: the handle is not released, the
// session has not ended, the slot has the same generation, and its memory is undamaged.
func (b *ImmutableBlock) Valid() bool {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	ref, ok := b.pinnedLocked()
	return ok && b.pool.slots.Host.Slot(ref).Resident()
}

// Release gives the pin back. The block may be evicted once it has no other pin. A second
// call does nothing.
func (b *ImmutableBlock) Release() {
	p := b.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if ref, ok := b.pinnedLocked(); ok {
		b.sess.pinned--
		p.unpinLocked(b.sess, ref, p.slots.Host.Slot(ref))
	}
	b.released = true
}

// pinnedLocked returns the block's slot. pinned is false when the handle was released, or its
// session or slot is gone.
func (b *ImmutableBlock) pinnedLocked() (ref registry.Ref, pinned bool) {
	p := b.pool
	if b.released || p.life.closed || p.members.sessions[b.session] != b.sess {
		return registry.NoRef, false
	}
	ref, ok := p.findLocked(b.slot)
	return ref, ok && b.sess.pins.of(ref) > 0
}

// handleLocked makes a handle of a pin that the session has.
func (p *Pool) handleLocked(s SessionID, sess *session, ref registry.Ref) *ImmutableBlock {
	r := p.slots.Host.Record(ref)
	return &ImmutableBlock{pool: p, session: s, sess: sess, slot: p.slots.Host.Name(ref), block: tier.BlockOf(&r)}
}
