// Package metric reads numbers out of snapshot structs, so that each number is
// declared once, beside the state that it counts.
//
// A snapshot struct is a plain struct of exported fields. Its tags declare the numbers:
//
//	type Stats struct {
//		Frames  uint64 `json:"frames" help:"Frames received."`              // a counter
//		Waiting int    `json:"waiting" help:"Frames in the queue."`         // a gauge
//		Bytes   uint64 `json:"bytes" metric:"memory_bytes,gauge" help:"…"`  // a gauge by its tag
//		Next    uint64 `json:"next" metric:"-"`                             // JSON alone
//	}
//
// A uint64 is a counter. An int, int64, uint32, float64 or bool is a gauge. The tag
// "metric" gives another name than the JSON name, makes a uint64 a gauge, or hides
// the field. Fields of struct type are walked, so that structs nest and embed.
// Strings, pointers, slices and maps are no numbers and are passed over. A [Durations] is a
// histogram: the owner calls Observe under its lock, and [EachDurations] yields it.
//
// [Each] yields the numbers for Prometheus and for "blockyard inspect". [Add] and
// [AddCounters] compute totals. encoding/json needs no help. Package
// internal/metric/prom sends the numbers to Prometheus.
//
// Guarantees: two fields of one struct with one name, or a number without a name, panic at
// the first use of the struct, which every test of its package reaches. Each, Add and
// AddCounters read through reflection: they serve scrapes and totals, not hot paths.
// The callers own the snapshots. All functions may be called from any goroutine.
package metric
