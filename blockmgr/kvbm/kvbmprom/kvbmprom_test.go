package kvbmprom_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm/kvbmprom"
)

func TestValuesArriveInTheRegistry(t *testing.T) {
	r := prometheus.NewRegistry()
	n, err := kvbmprom.New(r).Namespace(config.MetricsNamespaceName)
	if err != nil {
		t.Fatal(err)
	}
	n.Add("offload_blocks_d2h", 2)
	n.Add("offload_blocks_d2h", 3)
	n.Set("host_cache_hit_rate", 0.5)
	n.Add("no_such_metric", 1)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	if len(got) != 13 || got["kvbm_offload_blocks_d2h"] != 5 || got["kvbm_host_cache_hit_rate"] != 0.5 {
		t.Errorf("gathered %v", got)
	}
}

func TestASecondManagerOnOneRegistryIsAnError(t *testing.T) {
	r := kvbmprom.New(prometheus.NewRegistry())
	if _, err := r.Namespace("kvbm"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Namespace("kvbm"); err == nil {
		t.Error("no error")
	}
}
