// Package soak runs the router's index and scheduler for a long time, and watches
// their memory and whether they stay right.
//
//	err := soak.Run(ctx, soak.Options{Duration: 10 * time.Minute, Out: os.Stdout})
//
// Engines and pools (package loggen) store and remove blocks at a fixed rate. Prompts
// are looked up and sent to workers meanwhile. Owners leave and others come, dumps
// replace an owner's blocks, and owners lose all blocks. The process samples its heap
// and its resident memory, each after a garbage collection.
//
// A run fails when heap or resident memory grows by more than Options.MaxSlope per
// cent a minute after the first fifth, when an owner's digest or number of blocks is
// not what the index was told, when something of an owner that left remains, and when
// the rate was not kept. Runs shorter than MinJudged are not judged by slope and rate.
//
// Run returns when its goroutines have ended. The owners' own tables are in the same
// heap: about 80 bytes a block, all of it from the start.
package soak
