// Package events measures the path of events: how fast one core turns what an
// engine sends into what routers get, what a tracked block costs in memory, and how
// old an event is when a router knows it.
//
// # Wire to wire
//
// A process of its own (Consume) follows a ZMQ socket with a consolidator.Rank, as
// an agent does, and encodes what leaves the stream as an agent's publisher does:
// bytes of the engine in, bytes of the native stream out, digest on. This process
// sends it blocks as fast as it takes them, first 1 M that stay, then as many again
// that each push an old one out. Blocks a second are blocks that events name,
// stored or removed, by the *processor time* of that process, libzmq's thread and
// the garbage collector included: what one core does, whatever else the machine is
// at. Memory is the growth of its heap, and of its resident set, after the first
// part. In turn with it the same bytes are only received and decoded: what of the
// time is not ours to save. There are three rounds; medians count.
//
// # Visible
//
// This process is the engine of a real agent, which publishes over a real
// nats-server to a real router, each a process. It sends batches at a fixed rate,
// and in some of them a block of its own sequence, the probe. From just before the
// batch with the probe is sent, the router is asked what the probe's tokens would
// cost, until it says that they are cached. The age of an event includes that
// answer's way back; the time between two questions is what an age may be too
// large by, and is reported.
//
// # Ownership and failure
//
// Run owns its processes and directories (package rig) and leaves none. It is for
// one goroutine. A figure of a run that lost an event would mean nothing: such a
// run fails.
package events
