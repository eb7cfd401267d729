// Package evict compares which blocks a tier keeps: the production Evictors of blockmgr/policy, rules of
// other caches as Evictors, and the offline optimum.
//
//	tables, err := evict.Run(evict.Options{Seeds: 3, Out: os.Stdout})
//
// A Cache is one tier: it serves the leading blocks of a prompt that it has, and then stores the others
// and the answer. It evicts no block before its children, like the block manager, and refuses a block
// that only its own ancestors could make room for. Every access has a workload behind it: cycles, scans,
// skewed documents, conversations, agents, shared prompts, and traces.
//
// The optimum knows the future. It evicts the block that is asked for last, and stores no block that is
// asked for later than all others (Belady's rule with bypass; blocks have one size).
//
// A run is a pure function of its options. The package does no I/O but reading traces and writing its
// report.
package evict
