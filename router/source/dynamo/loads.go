package dynamo

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

const (
	// loadQueue is how many messages about loads may wait; each replaces an earlier one.
	loadQueue = 256
	// loadEvery is how often the router is told again what a worker uses: workers of
	// Dynamo say it when it changes, and the router forgets it after a minute.
	loadEvery = 20 * time.Second
)

// load takes in one message of the topic kvevent.LoadTopic. Of a rank that is not known
// it is only counted.
func (t *Source) load(data []byte, now time.Time) []source.Frame {
	l, err := kvevent.DecodeLoadEnvelope(data)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		if t.counters.Undecodable++; t.counters.Undecodable == 1 {
			t.log.Warn("message cannot be decoded; further ones are only counted", zap.Error(err))
		}
		return nil
	}
	r := t.ranks[l.Worker]
	if r == nil {
		t.counters.UnknownLoads++
		return nil
	}
	if !l.HasKVUsedBlocks {
		return nil
	}
	t.counters.Loads++
	r.used, r.usedKnown = l.KVUsedBlocks, true
	return r.report(nil, now)
}

// report appends what the rank uses. It does not say how many requests the rank has,
// because Dynamo does not.
func (r *rank) report(out []source.Frame, now time.Time) []source.Frame {
	r.reportAt = now.Add(loadEvery)
	l := kvevent.LoadReport{PublisherID: r.publisher, Owner: kv.WorkerOwner(r.worker), Worker: kvevent.WorkerLoad{DeviceBlocksUsed: r.used}}
	return append(out, source.Frame{Kind: source.FrameLoad, Data: kvevent.AppendLoadReport(nil, &l)})
}
