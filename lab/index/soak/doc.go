// Package soak runs the router's index and scheduler for a long time and watches
// what they cost and whether they stay right.
//
// Engines with prefix caches and pools of nodes (package loggen) store and remove
// blocks at a fixed rate, in real time. Meanwhile prompts are looked up and sent to
// workers, owners leave and others with new names come, an owner's blocks are
// replaced by a dump of what it holds, and owners lose all of them. The process
// takes a sample of its heap and of its resident memory at fixed intervals, each
// after a garbage collection.
//
// # What fails a run
//
//   - heap or resident memory that grows by more than Options.MaxSlope per cent a
//     minute, by the line that fits the samples after the first fifth best;
//   - an owner whose digest or number of blocks in the end is not what it was told;
//   - an owner that has left and of which something is left, or an event, a lookup
//     or a decision that fails;
//   - a rate that was not reached, in a run that is long enough to be judged.
//
// Runs shorter than MinJudged show slopes but are not judged by them: what a cache
// does in its first minute is no trend.
//
// Run returns when all its goroutines have ended. What engines are told and what
// they hold is kept in the same process and counts in its heap: about 80 bytes for
// each block of their pools, all of it there from the start.
package soak
