package dynamo

import (
	"slices"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// TestWorkersSayWhatTheyUse: the used blocks of a known rank reach the router, and again
// while nothing changes.
func TestWorkersSayWhatTheyUse(t *testing.T) {
	d := newDirectory(t)
	p := &fakePlane{}
	p.connected.Store(true)
	tr, err := Open(Options{Directory: d.dir, Endpoint: endpoint}, p)
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Close(); err != nil { // no goroutine beside this one
		t.Fatal(err)
	}
	w, now := kv.Worker{ID: 7, Rank: 1}, time.Unix(1000, 0)
	tr.joinLocked(w, card{model: "m", blockSize: 16})
	said := func(l kvevent.ActiveLoad) []source.Frame {
		return tr.handleLoad(kvevent.AppendLoadEnvelope(nil, 3, 1, 1, &l), now)
	}
	used := func(out []source.Frame) (reports []uint64) {
		t.Helper()
		for _, f := range out {
			if f.Kind != source.FrameLoad {
				continue
			}
			r, err := kvevent.DecodeLoadReport(f.Data)
			if err != nil || r.Owner != kv.WorkerOwner(w) || r.Worker.DeviceBlocksTotal != 0 {
				t.Errorf("report %+v, %v", r, err)
			}
			reports = append(reports, r.Worker.DeviceBlocksUsed)
		}
		return reports
	}
	if got := used(said(kvevent.ActiveLoad{Worker: w, KVUsedBlocks: 90, HasKVUsedBlocks: true})); len(got) != 1 || got[0] != 90 {
		t.Errorf("reports %v", got)
	}
	if got := used(said(kvevent.ActiveLoad{Worker: w, ActiveDecodeBlocks: 3, HasActiveDecodeBlocks: true})); got != nil {
		t.Errorf("of no used blocks: %v", got)
	}
	if got := used(said(kvevent.ActiveLoad{Worker: kv.Worker{ID: 9}, HasKVUsedBlocks: true})); got != nil {
		t.Errorf("of an unknown rank: %v", got)
	}
	if got := used(tr.handleLoad([]byte("nonsense"), now)); got != nil {
		t.Errorf("of nonsense: %v", got)
	}
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{loadInterval - 1, 0}, {1, 1}, {time.Second, 0}, {loadInterval, 1}} {
		now = now.Add(c.after)
		if got := used(tr.tick(now)); len(got) != c.want {
			t.Errorf("%v later: reports %v, want %d", c.after, got, c.want)
		}
	}
	if c := tr.counters; c.Loads != 1 || c.UnknownLoads != 1 || c.Undecodable != 1 {
		t.Errorf("counters %+v", c)
	}
}

// recordingPlane is a Plane that only remembers the subjects.
type recordingPlane struct {
	noPlane
	subjects []string
}

func (p *recordingPlane) Subscribe(subject string, messages chan<- []byte) (stop func(), dropped func() uint64, err error) {
	p.subjects = append(p.subjects, subject)
	return p.noPlane.Subscribe(subject, messages)
}

// TestLoadsAreWantedWithoutEvents: busy thresholds go by them, whatever is known of blocks.
func TestLoadsAreWantedWithoutEvents(t *testing.T) {
	for noEvents, want := range map[bool][]string{
		true:  {endpoint.Subject(kvevent.LoadTopic)},
		false: {endpoint.Subject(kvevent.LoadTopic), endpoint.Subject(topic)},
	} {
		p := &recordingPlane{}
		tr, err := Open(Options{Directory: newDirectory(t).dir, Endpoint: endpoint, NoEvents: noEvents}, p)
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
		if !slices.Equal(p.subjects, want) {
			t.Errorf("no events %v: subscribed to %q, want %q", noEvents, p.subjects, want)
		}
	}
}
