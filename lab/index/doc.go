// Package index measures the router's index and its decisions.
//
//	err := index.Run(ctx, index.Options{Logs: paths, Child: command, Out: os.Stdout})
//
// An op log (package oplog) has events and prompts, and the sums of exact answers. A
// log is replayed in parts, each in a fresh process:
//
//   - events: all events; then digest and pairs of every engine must be the log's
//   - mixed: events and queries in order, sums of the answers checked
//   - lookups: the same with the time of each query, then all queries once more
//   - busy: lookups while another goroutine applies the second half of the log
//   - visible: from the call that applies a block until a reader finds the block
//   - memory: resident memory for each (block, engine) pair
//
// Two parts need no log. score is one decision for a prompt of 15,000 blocks that 96
// workers hold. select is the choice among 10,000 workers with loads.
//
// Events and prompts are made before the clock starts, and lie in the mapped file.
// A wrong sum, digest or number is an error. Run ends its processes and leaves no
// file. docs/benchmarks.md has figures.
package index
