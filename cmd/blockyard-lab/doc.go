// Command blockyard-lab shows Blockyard at work and proves that it works: the
// demonstration, benchmarks, stress, kill-loop, soaks and the simulated engine.
// Package lab/cli has its subcommands.
package main
