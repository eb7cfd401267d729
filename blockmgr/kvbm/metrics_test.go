package kvbm

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/metric"
)

// values is a namespace of metrics, and a registry that has only that.
type values struct {
	mu     sync.Mutex
	counts map[config.Metric]uint64
	gauges map[config.Metric]float64
	err    error
}

func newValues() *values {
	return &values{counts: map[config.Metric]uint64{}, gauges: map[config.Metric]float64{}}
}

func (v *values) Add(m config.Metric, n uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.counts[m] += n
}

func (v *values) Set(m config.Metric, g float64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gauges[m] = g
}

func (v *values) Namespace(name string) (config.MetricsNamespace, error) {
	if name != config.MetricsNamespaceName {
		return nil, errors.New("another namespace")
	}
	return v, v.err
}

func (v *values) count(m config.Metric) uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.counts[m]
}

// check compares all metrics; those that are not named are 0.
func (v *values) check(t *testing.T, counts map[config.Metric]uint64, gauges map[config.Metric]float64) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	metric.Each(new(config.MetricValues), func(f *metric.Field, _ float64) {
		if f.Kind == metric.Counter {
			counts[config.Metric(f.Name)] += 0
		} else {
			gauges[config.Metric(f.Name)] += 0
		}
	})
	if !maps.Equal(v.counts, counts) || !maps.Equal(v.gauges, gauges) {
		t.Errorf("metrics %v and %v, want %v and %v", v.counts, v.gauges, counts, gauges)
	}
}

func TestMetricsArriveWhileTheManagerRunsAndAtItsEnd(t *testing.T) {
	cfg, place := both(t, 8)
	v := newValues()
	cfg.Metrics = v
	c := open(t, cfg, place)
	v.check(t, map[config.Metric]uint64{}, map[config.Metric]float64{})
	blocks := c.sequence(1, 4)
	c.add(1, blocks)
	c.find(blocks[:2])
	waitFor(t, "the counts are there", func() bool { return v.count("onboard_blocks_h2d") == 2 })
	if err := c.Reset(t.Context(), config.G2); err != nil {
		t.Fatal(err)
	}
	c.find(append(blocks[:4:4], c.sequence(2, 4)...))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	v.check(t, map[config.Metric]uint64{
		"offload_blocks_d2h": 4, "offload_blocks_h2d": 4, "onboard_blocks_h2d": 2, "onboard_blocks_d2d": 4,
		"matched_tokens": 6 * 16,
	}, map[config.Metric]float64{"host_cache_hit_rate": 0.2, "disk_cache_hit_rate": 0.4})
}

func TestMetricsOfARegistryAndWithoutAHostTier(t *testing.T) {
	cfg, place := both(t, 8)
	v := newValues()
	cfg.Runtime.Metrics, cfg.HostLayout = v, nil
	c := open(t, cfg, place)
	c.add(1, c.sequence(1, 4))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	v.check(t, map[config.Metric]uint64{"offload_blocks_d2d": 4}, map[config.Metric]float64{})
}

func TestRegistryThatFailsFailsNew(t *testing.T) {
	cfg, place := both(t, 4)
	v := newValues()
	v.err = errors.New("taken")
	cfg.Runtime.Metrics = v
	if _, err := New(t.Context(), cfg, place); !errors.Is(err, v.err) || !strings.HasPrefix(err.Error(), "runtime metrics") {
		t.Errorf("got %v", err)
	}
}

func TestHitRatesForgetWhatIsOlderThanTheWindow(t *testing.T) {
	v := newValues()
	f := metricsFeed{to: v, pageSize: 16, sent: map[string]float64{}, hits: config.NewHitRates(hitSamples)}
	st := blockmgr.Stats{Counters: blockmgr.Counters{Misses: 1000}}
	f.send(st)
	for i := range hitSamples {
		if want := float64(i) / float64(i+1000); v.gauges["host_cache_hit_rate"] != want {
			t.Fatalf("after %d hits the rate is %v, want %v", i, v.gauges["host_cache_hit_rate"], want)
		}
		st.HostHits++
		f.send(st)
		f.send(st) // in which nothing was asked for
	}
	if v.gauges["host_cache_hit_rate"] != 1 {
		t.Errorf("the rate is %v when the misses are long past", v.gauges["host_cache_hit_rate"])
	}
}
