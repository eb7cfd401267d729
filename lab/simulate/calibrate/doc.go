// Package calibrate records a real engine and shows how near the simulator comes to it.
//
//	err := calibrate.Run(ctx, calibrate.Options{Python: python, Table: "engine.json", Out: os.Stdout})
//
// Run starts one vLLM server on CPU (interop/calibrate), whose scheduler writes a line for each step. Clients
// send loads of known arrivals and lengths. The loads of the recording have other seeds and rates than the
// held-out load. Its parts are played between them, so that a change of the machine's speed is in both. Fit makes
// the table of engine.Recording from the recording. The simulator then serves the held-out load with
// the table, on one engine.
//
// Error: Run fails when the simulator's mean or 99th percentile of the time to the first token or between tokens is
// more than 15 % from the engine's. The figures are printed before.
//
// Guarantees: Fit uses no time of the held-out load. The engine's process ends with Run, and its files are
// removed unless Run fails.
//
// Ownership: Run owns the process and a goroutine for each open request, and waits for all of them.
package calibrate
