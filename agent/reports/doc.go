// Package reports sums the counters that connectors send in STATS, by worker rank and role.
//
//	t := reports.New()
//	r := t.Reporter(worker, hello) // one for each connection
//	err := r.Take(stats, time.Now())
//	r.Close()
//	list, ignored, forgotten := t.Snapshot()
//
// A connection's STATS are totals since its start; Take adds the difference to the last ones.
// A sum outlives its connections. The number of sums is bounded: the one with the oldest report
// makes room. A report counts at most once a second for each connection; the next one that
// counts has everything. A counter that goes back is refused.
package reports
