// Package soak breaks the path of events again and again and compares, whenever
// everything has come to rest, what the router believes with what the engines
// and agents hold.
//
// # Processes
//
//	engines ──ZMQ, frames left out──► agents ──NATS──► router
//
// All of them are processes of their own (package rig). Engines are simulated
// ones: their block pools are real, and their /v1/state is the truth about the
// device tier, from the pool itself and not from anything that was published.
// The truth about host and disk is the agents' /v1/pools, from the block manager.
//
// # Faults
//
//   - Each engine leaves out event frames all the time, one in eight.
//   - The NATS server is killed, and stays away for up to a second and a half.
//   - An agent is killed (SIGKILL) and started again.
//   - An engine is killed and started again: it holds nothing then.
//   - The router is stopped (SIGSTOP) for up to two seconds, so that messages for it
//     pile up; and it is killed, so that the next one joins late.
//   - An engine's prefix cache is reset.
//
// # What is checked
//
// After each round of faults the load stops. When engines and agents are idle and
// the router has applied what the agents announced, every (owner, block, tier) is
// compared, both ways. Digests have no part in it. Then one agent is killed while
// nothing moves, and what the router believes of its engines' devices is compared
// as soon as the next agent has told it: at least 99 % must be there, from the
// agent's own checkpoint, for by then an engine's replay does not reach back to
// its beginning any more.
//
// A comparison that cannot fail proves nothing. So a short run goes before, in
// which the NATS server refuses the router's questions: it must diverge.
//
// # Ownership, concurrency, failure
//
// Run owns all processes and directories, and leaves none but the logs of a run
// that failed. Faults happen on Run's goroutine; the load has one goroutine a
// client, which end before Run returns. A call to a process that was just killed
// fails and is counted, no more.
package soak
