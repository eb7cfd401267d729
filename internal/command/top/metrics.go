package top

import (
	"strconv"
	"strings"
)

// metrics are the series of a scrape that the screen shows: values by family and labels as
// Prometheus' text has them.
type metrics map[string]map[string]float64

// families are the metric families that are kept.
var families = map[string]bool{
	"blockyard_router_active_requests":                  true,
	"blockyard_router_decision_seconds_count":           true,
	"blockyard_router_hit_blocks_total":                 true,
	"blockyard_router_kv_hit_rate_count":                true,
	"blockyard_router_kv_hit_rate_sum":                  true,
	"blockyard_router_queue_pending_requests":           true,
	"blockyard_router_requests_total":                   true,
	"blockyard_frontend_cached_tokens_difference_total": true,
}

// parseMetrics reads a scrape in Prometheus' text format.
func parseMetrics(text string) metrics {
	m := make(metrics)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		name, labels, _ := strings.Cut(line[:at], "{")
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if !families[name] || err != nil {
			continue
		}
		if m[name] == nil {
			m[name] = make(map[string]float64)
		}
		m[name][strings.TrimSuffix(labels, "}")] += value
	}
	return m
}

// sum returns the sum of a family.
func (m metrics) sum(family string) (total float64) {
	for _, v := range m[family] {
		total += v
	}
	return total
}

// by returns the sums of a family by the values of a label, of the series that have all of the
// wanted labels, each as name="value".
func (m metrics) by(family, label string, wanted ...string) map[string]float64 {
	sums := make(map[string]float64)
series:
	for labels, v := range m[family] {
		for _, w := range wanted {
			if !strings.Contains(","+labels, ","+w) {
				continue series
			}
		}
		_, rest, ok := strings.Cut(","+labels, ","+label+`="`)
		value, _, _ := strings.Cut(rest, `"`)
		if ok && value != "" {
			sums[value] += v
		}
	}
	return sums
}
