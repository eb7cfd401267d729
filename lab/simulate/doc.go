// Package simulate compares ways to choose a worker in virtual time. The production router decides:
// its index, scheduler, account of loads, estimator and decision are linked in. Engines, tiers and
// clocks are models: see package engine. One seed has one result.
//
//	table, err := simulate.Run(ctx, simulate.Options{Seeds: 10, Out: os.Stdout})
//
// A scenario is a cluster, a workload and what happens to the cluster. A policy is how the router
// chooses: see package policy. Each run is one scenario, one policy and one seed. Sessions are closed
// loops: the next turn comes a pause after the end of the turn before. A run ends when the last request
// that counts has ended.
//
// docs/simulate.md describes the report, the scenarios, and what the models leave out.
//
// Failure: New scenarios with a workload that cannot be read are errors before the first run. A run
// whose requests do not end within its limit counts them as unfinished, which no limit admits.
//
// Runs share nothing but prompts, which do not change, so they may run side by side. Each has its own
// goroutine.
package simulate
