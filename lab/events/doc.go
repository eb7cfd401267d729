// Package events measures the path of events: how fast one core turns an engine's
// events into envelopes for routers, what a tracked block costs in memory, and how
// old an event is when a router knows it.
//
//	err := events.Run(ctx, events.Options{Programs: programs, NATSServer: path, Out: os.Stdout})
//
// Wire to wire: a process of its own (Consume) follows a ZMQ socket with a
// consolidator.Rank and encodes the stream as an agent does. Rates are by the
// processor time of that process, libzmq and the collector included. In turn with it
// the same bytes are only received and decoded. Three rounds; medians count.
//
// Visible: this process is the engine of a real agent, NATS server and router. Some of
// its batches carry a probe. The router is asked for the probe's tokens until it knows
// them. The age of an event includes the way of that answer; the time between two
// questions is reported with it.
//
// Run owns its processes and directories and is for one goroutine. A run that lost an
// event fails. docs/benchmarks.md has figures.
package events
