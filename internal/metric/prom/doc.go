// Package prom sends the numbers of snapshot structs (package internal/metric) to a
// Prometheus collector.
//
//	func (c *collector) Collect(ch chan<- prometheus.Metric) {
//		s := c.stats()
//		prom.Families(ch, "blockyard_router_", &s.Feeds)              // one family for each number
//		prom.FamiliesBy(ch, "blockyard_frontend_admission_", "model", m, &s.Queue) // with a label
//		prom.Kinds(ch, c.poolCounters, c.poolGauges, &s.Pool, "7")    // one family, the number's name in its last label
//		prom.Histograms(ch, c.seconds, &s.Pool)                       // one family, the histogram's name in its last label
//	}
//
// Process adds what every program shows: its build, Go, the operating system. Deprecated is the
// help of an old name.
//
// The functions convert one snapshot and keep nothing but the descriptions of the
// families. They may be called from any goroutine. Labels that do not fit the
// description panic, as in client_golang.
package prom
