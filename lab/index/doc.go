// Package index measures the router's index and its decisions.
//
// # What is measured
//
// An op log (package oplog) says which events came and which prompts were asked
// for in between, and what exact answers add up to. A log is replayed in several
// parts, each in a fresh process, so that none starts with another one's heap:
//
//   - events: all events as fast as they are taken, what was put off done; then
//     digest and number of pairs of every engine must be those of the log;
//   - mixed: events and queries in the order of the log, sums of the answers
//     checked;
//   - lookups: the same, with the time of each query; then every query once more
//     against the last state;
//   - busy: the time of lookups while another goroutine applies the second half of
//     the log as fast as it can;
//   - visible: from the call that applies a block until a reader on the other
//     processor finds it, under the same load;
//   - memory: resident memory for each (block, engine) pair, after all events, the
//     log in mapped pages that do not count.
//
// Two parts need no log: score is one decision for a prompt of 15,000 blocks that
// all of 96 workers hold, and select the choice among 10,000 workers with loads.
//
// Events and prompts are made before the clock starts; their blocks lie in the
// mapped file. Garbage is collected as everywhere; each part shows its processor
// time, collections and pauses.
//
// # Failure
//
// A wrong sum, digest or number is an error: figures of wrong answers mean
// nothing. Run starts processes and ends them, and leaves no file.
package index
