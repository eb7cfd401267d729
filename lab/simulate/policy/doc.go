// Package policy has the ways to choose a worker that the simulator compares: rules of other
// routers and textbook rules, each as a schedule.Selector, and the production selectors.
//
//	p, ok := policy.Named("llm-d")
//	selector := p.Selector(policy.Context{View: view, Seed: 1}) // nil: the production CostSelector
//
// Every policy gets the production index's hits and the production account of loads. A rule that
// reads an engine's state reads the present one through View, where its original reads a sample that
// is up to a second old. Both make the rivals better than their originals.
//
// docs/simulate.md says for each rule where it comes from.
//
// A Selector belongs to one scheduler, which calls it under its lock.
package policy
