// Package demo runs Blockyard whole on one machine and says whether it kept its
// promises: node agents, simulated engines and a router, each a process of its
// own, under a workload.
//
// Run plays one workload three times, each time with fresh processes and empty
// directories: "ours" (requests routed by what the caches hold, all tiers on),
// round-robin routing with all tiers, and routing by caches with the host and
// disk tiers off. It prints the three side by side. On the way it makes trouble on
// purpose: engines leave out event frames, and one engine's prefix cache is reset
// under load. When the traffic has ended, every block that the router believes in
// is compared with what engines and agents really hold.
//
// A run passes only if what it had to show was looked at: blocks verified for all
// tokens that were loaded, blocks compared, events counted, every stream and feed
// exact with a digest compared at its last event. The tokens that engines say they
// served must add up to those that were sent. The runs to compare with must be
// what they claim: requests given out in turn, or no token from host and disk.
//
// Selftest shows that the checks are not blind: it flips bytes in stored blocks,
// in host memory and on disk, and counts that each one is noticed.
//
// Guarantees: Run and Selftest return nil only if every check passed; every
// reason otherwise is one line on Err. Whatever way they end (success, failure,
// cancelled context), they have waited for all their child processes and removed
// the directories they made; only logs stay, on failure or when asked for.
// Should this process be killed, the kernel kills its children, and the next demo
// removes what it left in shared memory. After a cancellation everything is gone
// within about four seconds. Every wait is bounded (limits.go): a process that does
// not answer in time fails the request, by name, and a demo that takes far longer
// than its workload ends with its logs kept. A child that even a kill does not end
// is reported and left.
//
// What is simulated: the engines compute nothing. Prefill and decode take the time
// that their rates say, divided by the speed-up, and the values of a KV block
// are a function of its identity. Everything else is real: processes, sockets,
// event streams, shared memory, files, hashes, and every byte that is copied and
// checked. Times to first token are those of the simulation, on however many
// cores this machine has: compare them with one another, not with a GPU.
//
// Run uses one goroutine per request in flight, bounded by Options.Concurrency,
// and none of its parts is shared between runs.
package demo
