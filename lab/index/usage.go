package index

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/lab/index/oplog"
	"github.com/blockyard-ai/blockyard/lab/measure"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Figures are the results of a part by name. Names have the units.
type Figures map[string]float64

// Names of figures that every part of a log or a decision has.
const (
	figSeconds = "seconds"     // between two marks
	figCPU     = "cpu_seconds" // processor time of the process in these
	figGCs     = "collections" // garbage collections in these
	figPause99 = "gc_pause_p99_us"
	figPause   = "gc_pause_max_us"
	figAlloc   = "allocated_mb"
	figHeap    = "heap_mb" // live after the last collection
)

const (
	metricPauses = "/sched/pauses/total/gc:seconds"
	metricGCs    = "/gc/cycles/total:gc-cycles"
	metricAlloc  = "/gc/heap/allocs:bytes"
	metricLive   = "/gc/heap/live:bytes"
)

// mark is a moment with the usage of the process up to it.
type mark struct {
	samples []metrics.Sample
	cpu     float64
	at      time.Time
}

// begin collects garbage and returns the mark of now.
func begin() mark {
	runtime.GC()
	return now()
}

func now() mark {
	m := mark{samples: []metrics.Sample{{Name: metricPauses}, {Name: metricGCs}, {Name: metricAlloc}, {Name: metricLive}}}
	metrics.Read(m.samples)
	m.cpu = measure.CPUSeconds()
	m.at = time.Now()
	return m
}

// end returns what the process has used since begin returned m: time, processor time,
// collections, pauses and memory.
func (m *mark) end() Figures {
	stop := time.Now()
	n := now()
	pauses := measure.Between(m.samples[0].Value.Float64Histogram(), n.samples[0].Value.Float64Histogram())
	return Figures{
		figSeconds: stop.Sub(m.at).Seconds(),
		figCPU:     n.cpu - m.cpu,
		figGCs:     float64(n.samples[1].Value.Uint64() - m.samples[1].Value.Uint64()),
		figPause99: 1e6 * pauses.Quantile(0.99),
		figPause:   1e6 * pauses.Quantile(1),
		figAlloc:   float64(n.samples[2].Value.Uint64()-m.samples[2].Value.Uint64()) / 1e6,
		figHeap:    float64(n.samples[3].Value.Uint64()) / 1e6,
	}
}

// quantiles returns the q-quantile of the latencies ns for each q of qs. ns is in nanoseconds and
// gets sorted; the results are in microseconds. Without latencies they are 0.
func quantiles(ns []uint32, qs ...float64) []float64 {
	out := make([]float64, len(qs))
	if len(ns) == 0 {
		return out
	}
	slices.Sort(ns)
	for i, q := range qs {
		out[i] = float64(ns[int(q*float64(len(ns)-1))]) / 1e3
	}
	return out
}

// since returns the time since t in nanoseconds, at most what a uint32 holds: 4 s.
func since(t time.Time) uint32 {
	return uint32(min(time.Since(t), math.MaxUint32))
}

// privateMemory returns the resident memory of the process in bytes, without mapped files such as
// the log.
func privateMemory() (uint64, error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	total, found := uint64(0), 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if name != "RssAnon" && name != "RssShmem" {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/self/status: %s: %w", name, err)
		}
		total += kib << 10
		found++
	}
	if found != 2 {
		return 0, fmt.Errorf("/proc/self/status: RssAnon and RssShmem are not both there")
	}
	return total, nil
}

// Names of figures of the part memory.
const (
	figBytes     = "bytes_per_membership"
	figBytesUsed = "bytes_per_membership_before_collection"
	figPairs     = "memberships"
)

// settledMemory returns the private memory after a garbage collection.
func settledMemory() (uint64, error) {
	debug.FreeOSMemory()
	return privateMemory()
}

// applyOneByOne applies the log's events to the index. It makes each event when it is needed, so
// that memory holds one at a time.
func (r *replay) applyOneByOne(x *index.Index) error {
	id := uint64(0)
	for _, rec := range r.log.Records() {
		if rec.Op == oplog.Query {
			continue
		}
		id++
		e := eventOf(rec, id)
		if err := x.Apply(&e); err != nil {
			return err
		}
	}
	drain(x)
	return nil
}

// measureMemory returns the resident memory of the index in bytes per pair of block and worker:
// the growth from before the index to after all events.
func (r *replay) measureMemory() (Figures, error) {
	h := r.log.Header()
	if h.Answers.Memberships == 0 {
		return nil, fmt.Errorf("op log: word 8 (memberships) is 0: there is nothing to divide by")
	}
	r.events, r.queries, r.order = nil, nil, nil
	before, err := settledMemory()
	if err != nil {
		return nil, err
	}
	x, err := newIndex(h.Engines)
	if err != nil {
		return nil, err
	}
	if err := r.applyOneByOne(x); err != nil {
		return nil, err
	}
	used, err := privateMemory()
	if err != nil {
		return nil, err
	}
	after, err := settledMemory()
	if err != nil {
		return nil, err
	}
	per := func(bytes uint64) float64 { return (float64(bytes) - float64(before)) / float64(h.Answers.Memberships) }
	f := Figures{figBytes: per(after), figBytesUsed: per(used), figPairs: float64(h.Answers.Memberships)}
	return f, r.checkHeld(x)
}
