// Package ttft compares the scheduler's cost mode with its weights in a simulated
// cluster. All of it is tests: a real index is fed with the events of simulated caches,
// a real scheduler keeps its account of loads, and a real estimator learns only from
// load reports and from when first tokens come. Engines, disks and clocks are simulated.
// A run is a pure function of its seed, and takes no time but that of computing.
package ttft
