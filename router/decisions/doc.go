// Package decisions keeps a router's last decisions with the parts of their prices, and what
// their hits are worth.
//
//	var log decisions.Log
//	if log.Wants(now) { ... } // the caller collects the costs of all candidates
//	log.Add(decisions.Decision{...}, &result, compared) // result and compared are the scheduler's
//	last := log.Recent(20, now)
//
// A decision has the chosen worker. It has the other candidates when somebody looked at Recent in
// the last ten seconds, and for at most twenty decisions in a second: comparing them for a log that
// nobody reads would slow the router down.
//
// A Log has the last 128 decisions with at most 16 candidates each, and sums over all. Methods may
// be called from any goroutine. Nothing fails.
package decisions
