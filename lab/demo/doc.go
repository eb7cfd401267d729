// Package demo runs agents, simulated engines and a router on one machine under a
// workload, and checks what they promise.
//
//	err := demo.Run(ctx, options)      // three runs side by side
//	err := demo.Selftest(ctx, options) // the checks are not blind
//
// Run plays one workload with fresh processes three times: routed by caches with all
// tiers, in turn with all tiers, and by caches without host and disk. Engines leave
// out event frames on purpose, and one prefix cache is reset under load. At the end
// the router's index is compared with what engines and agents hold. With a hybrid model
// there is one run: the router's credit is compared with what engines find on their devices
// and at their agents, and an agent and an engine are killed in between.
//
// A run passes only if its checks looked at something: blocks were verified for all
// loaded tokens, residencies compared, events counted, and every stream and feed is
// exact. Selftest flips stored bytes in host memory and on disk, and counts that each
// one is noticed.
//
// Engines compute nothing: prefill and decode take the time that their rates say,
// divided by the speed-up. Everything else is real. Compare times to first token with
// one another and not with a GPU.
//
// Run and Selftest return nil only if every check passed. Each reason is one line on
// Options.Err. However they end, their processes have ended and their directories are
// removed, but for the logs of a failure. Every wait is bounded. After a cancellation
// everything is gone within about four seconds.
package demo
