// Package consolidated publishes what one worker rank can reach, its own blocks and its
// pool's, over ZMQ in vLLM's event format.
//
// Output is the way out: a merged stream and the ZMQ sink that publishes the stream. The
// agent opens one for each rank. Start adds the ways in for a program that embeds the
// block manager: the engine's events over ZMQ, and the pool's from the manager.
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
// vLLM's format carries tokens. They come from the engine's events. A block that lies on
// disk since an earlier process is published once the engine has stored it again.
//
// # Ownership and failure
//
// Who opens an Output or starts a Consolidator closes it. An endpoint that cannot be
// bound is an error. An engine that is not there is none: its events come when it does.
package consolidated
