// Package price has what a request is expected to take on a worker, in milliseconds, and the choice
// among workers by it.
//
//	costs[k] = prices[k].Total(price.Balanced)
//	k := price.Pick(costs, prices, firstBlock, func(k int) uint64 { return uint64(workers[k].ID) })
//
// Package estimate computes prices, and package schedule chooses by them.
//
// All functions are pure and allocate nothing.
package price
