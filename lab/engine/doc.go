// Package engine is a simulated inference engine: everything of a
// prefix-caching engine that a cache manager can see, without a model.
//
// What is real: the block pool with its reference counts, eviction order and
// duplicate blocks; the engine's own block hashes, which no other process can
// guess; device memory and the bytes in it; the ZMQ sockets, frames, sequence
// numbers and replays of vLLM's event publisher; the connector protocol, spoken
// to a real agent over its socket, with every loaded byte checked.
//
// What is simulated: the time that a step takes (slept, not computed), the
// values of the KV cache (a function of what the block stands for, so that a
// wrong byte is recognised as wrong), and the output tokens (a function of the
// prompt, so that every engine continues a prompt alike).
//
// The parts and who owns them:
//
//		HTTP handlers ──post──► core ◄──post── conversations ◄── link (one agent session)
//		                         │ owns pool, requests             └─ copier: slot → device block
//		                         └──payloads──► publisher (owns both ZMQ sockets)
//
//	  - core is one goroutine. It owns the block pool and every request; others
//	    reach them only by posting a function to its inbox. It runs steps as vLLM
//	    does: running requests first, then waiting ones, within a token budget and
//	    a limit of sequences, preempting the latest request when no block is free.
//	    With nothing to do it waits for its inbox; it never polls.
//	  - A conversation is one attempt at one request as the agent sees it: OPEN,
//	    LOOKUP, CLAIM, STORE, COMMIT, CLOSE in order, in a goroutine of its own. Their
//	    number is bounded, and so is the queue of each; what overflows is not stored
//	    and is counted.
//	  - The copier is the only one that writes loaded bytes. A device block that is
//	    the target of a load is not freed before the copier is done with it, and one
//	    that is the source of a store is referenced until it has been copied.
//	  - publisher is one goroutine, the only one that touches the event sockets.
//
//	  - A session tells its agent once a second how the engine stands, and lists the
//	    hashes of what the pool holds when the agent asks, as of one moment between
//	    two steps.
//
// Failure: without an agent, or when it goes away, the engine serves on. Copies
// under way end as they would have, because their slots stay the engine's; what
// had not begun fails, and its blocks are recomputed. The engine dials again with
// bounded backoff, names to the next agent what copies still use, and commits,
// aborts or releases that when they have ended. An agent that is about to stop is
// left in order: copies end, what they filled is committed, and BYE follows. A loaded block with a wrong byte is
// counted byte by byte, recomputed and never served. When queues are full a
// request is refused with 503. Shutdown drains for at most two seconds.
package engine
