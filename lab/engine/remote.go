package engine

import "github.com/blockyard-ai/blockyard/internal/kv"

// remote is the node's agent as the scheduler sees it.
type remote interface {
	// open starts a conversation about one attempt at a request. It returns nil
	// when no agent is connected, when it has no tier to offer, or when it can keep
	// no further conversation.
	open(a attempt) conversation
}

// attempt is what a conversation begins with.
type attempt struct {
	request    uint64
	generation uint32
	tokens     []uint32        // of all full blocks
	after      <-chan struct{} // closed when the request's last conversation is over; nil: it has none
	ended      func()          // called once, when this conversation is over
}

// conversation is one attempt at one request with the agent. Calls never block
// and are carried out in order. Callbacks are called exactly once, from another
// goroutine; when the agent is lost they report failure.
type conversation interface {
	// lookup asks which of the count blocks from first on the agent holds.
	lookup(first, count int, done func(lookupHit))
	// load copies the blocks of the request from first on, which lookup found, into
	// device blocks. good is how many of the first ones arrived and are right.
	load(first int, blocks []int32, ids []identity, done func(good int))
	// release gives up what lookup pinned.
	release(first, count int)
	// store offers the blocks from first on, whose bytes lie in device blocks that
	// the caller keeps until done. It returns false, and calls nothing, when too
	// much waits to be stored already.
	store(first int, blocks []int32, tokens []uint32, done func()) bool
	// close ends the conversation once everything asked for has been done.
	close()
	// over is closed when it has ended.
	over() <-chan struct{}
}

// lookupHit is what the agent holds: the len(sources) blocks from first on,
// pinned, and the tier that each was found in.
type lookupHit struct {
	first   int
	sources []kv.Tier
}

// beyond is the sources of the blocks from block n on, n not before first.
func (h lookupHit) beyond(n int) []kv.Tier {
	return h.sources[min(max(n-h.first, 0), len(h.sources)):]
}

// absent is the agent of an engine that has none.
type absent struct{}

func (absent) open(attempt) conversation { return nil }
