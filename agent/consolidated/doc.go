// Package consolidated publishes what one worker rank can reach, its own blocks and its
// pool's, over ZMQ in vLLM's event format.
//
// An Output publishes: it has a merged stream and the ZMQ sink that sends the stream. The
// agent opens one for each rank. Start is for a program that embeds the block manager.
// Start opens an Output and feeds it with the engine's events over ZMQ and the manager's
// own.
//
//	place := kvbm.Place{Consolidate: consolidated.Start, …}
//	m, err := kvbm.New(ctx, cfg, place) // cfg.Consolidator names the endpoints
//
// # Guarantees
//
//   - A block leaves when the rank and the pool hold it no more. Mode dedup counts all
//     tiers together, mode tiered each tier alone.
//   - A subscriber that comes late gets the whole state.
//   - Mode passthrough repeats the engine's own batches. The pool's blocks are not in it.
//
// # Tokens
//
// vLLM's format carries tokens. They come from the engine's events. A block on disk from
// an earlier process has no tokens. It is published once the engine has stored it again.
//
// # Ownership and failure
//
// The caller of Open or Start closes the result. An endpoint that cannot be bound is an
// error. An engine that has not started is no error: its events come once it has.
package consolidated
