// Command embed runs the block manager inside a program, without an agent. KVBM's
// environment variables size the tiers, the engine's events are merged with the manager's,
// and Prometheus scrapes the manager's metrics.
//
// It serves metrics until an interrupt. The examples of blockmgr/kvbm store and find blocks.
//
//	DYN_KVBM_CPU_CACHE_GB=1 DYN_KVBM_DISK_CACHE_GB=4 go run ./examples/embed -engine tcp://127.0.0.1:5557
package main
