// Package soak breaks the path of events again and again. Whenever everything has come
// to rest it compares the router's index with the blocks that engines and agents hold.
//
//	err := soak.Run(ctx, soak.Options{Duration: time.Minute, Programs: programs, NATSServer: path})
//
//	engines ──ZMQ, frames left out──► agents ──NATS──► router
//
// Each is a process. The NATS server, agents, engines and the router are killed and
// started again, the router is paused, prefix caches are reset. Engines' pools and the
// agents' block managers are the truth; digests have no part in it.
//
// After a round one agent is killed at rest. As soon as the router follows the next
// agent it must know 99 % of its engines' device blocks, from the agent's checkpoint.
// A short run goes first in which the router may not ask for what it missed. It must
// diverge, or the comparison is blind. docs/reliability.md lists the faults.
//
// Run owns its processes and directories, and leaves only the logs of a failure.
// Faults happen on Run's goroutine. Each client of the load has a goroutine, which
// ends before Run returns.
package soak
