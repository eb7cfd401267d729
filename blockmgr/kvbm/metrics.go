package kvbm

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
)

// hitSamples is how many samples hit rates are computed over: the last minute in
// which blocks were asked for. The pool does not know requests, over which KVBM
// computes them.
const hitSamples = 60

// feed hands the pool's counts to a namespace of metrics, as differences. A nil
// feed does nothing. It is not safe for concurrent use.
type feed struct {
	to config.MetricsNamespace
	// pageSize is the number of tokens in a block, bypass that blocks only pass
	// through host memory.
	pageSize uint64
	bypass   bool

	sent blockmgr.Stats
	hits [hitSamples]hitSample
	next int
}

// hitSample is what was asked for between two samples.
type hitSample struct{ host, disk, asked uint64 }

// newFeed is the feed of a configuration, nil when it has no metrics.
func newFeed(cfg *config.Config) (*feed, error) {
	to := cfg.Metrics
	if to == nil && cfg.Runtime.Metrics != nil {
		var err error
		if to, err = cfg.Runtime.Metrics.Namespace(config.MetricsNamespaceName); err != nil {
			return nil, fmt.Errorf("runtime metrics: namespace %s: %w", config.MetricsNamespaceName, err)
		}
	}
	if to == nil {
		return nil, nil
	}
	f := &feed{to: to, pageSize: cfg.Model.PageSize, bypass: cfg.HostLayout == nil && cfg.DiskLayout != nil}
	f.announce()
	return f, nil
}

// announce gives every metric a first value, so that dashboards show a zero
// rather than a gap. There is no object store, so that its metrics stay there.
func (f *feed) announce() {
	for _, m := range []config.Metric{
		config.OffloadDeviceToHost, config.OffloadHostToDisk, config.OffloadDeviceToDisk, config.OffloadDeviceToObject,
		config.OnboardHostToDevice, config.OnboardDiskToDevice, config.OnboardObjectToDevice,
		config.MatchedTokens, config.ObjectReadFailures, config.ObjectWriteFailures,
	} {
		f.to.Add(m, 0)
	}
	for _, m := range []config.Metric{config.HostCacheHitRate, config.DiskCacheHitRate, config.ObjectCacheHitRate} {
		f.to.Set(m, 0)
	}
}

// send counts what has happened since the last call. A block that a lookup found
// counts as onboarded: whoever asked for it copies it to the device.
func (f *feed) send(now blockmgr.Stats) {
	if f == nil {
		return
	}
	last := f.sent
	f.sent = now
	stored, written := now.Committed-last.Committed, now.WriteBehind-last.WriteBehind
	if f.bypass {
		f.add(config.OffloadDeviceToDisk, written)
	} else {
		f.add(config.OffloadDeviceToHost, stored)
		f.add(config.OffloadHostToDisk, written)
	}
	s := hitSample{host: now.HostHits - last.HostHits, disk: now.DiskHits - last.DiskHits}
	s.asked = s.host + s.disk + now.Misses - last.Misses
	f.add(config.OnboardHostToDevice, s.host)
	f.add(config.OnboardDiskToDevice, s.disk)
	f.add(config.MatchedTokens, (s.host+s.disk)*f.pageSize)
	if s.asked > 0 {
		f.setHitRates(s)
	}
}

func (f *feed) add(m config.Metric, n uint64) {
	if n > 0 {
		f.to.Add(m, n)
	}
}

// setHitRates takes a sample into the window and shows its rates. Both are shares
// of everything that was asked for.
func (f *feed) setHitRates(s hitSample) {
	f.hits[f.next] = s
	f.next = (f.next + 1) % hitSamples
	var sum hitSample
	for _, s := range f.hits {
		sum.host, sum.disk, sum.asked = sum.host+s.host, sum.disk+s.disk, sum.asked+s.asked
	}
	f.to.Set(config.HostCacheHitRate, float64(sum.host)/float64(sum.asked))
	f.to.Set(config.DiskCacheHitRate, float64(sum.disk)/float64(sum.asked))
}
