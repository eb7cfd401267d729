package soak

import (
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/blockyard-ai/blockyard/lab/measure"
)

// sample is the memory of the process at one moment, in bytes, after a garbage
// collection. index is the index's own account.
type sample struct {
	at               time.Duration
	heap, rss, index uint64
}

// takeSample returns the live heap and the resident memory in bytes, after a garbage collection.
// at is the time since the start.
func takeSample(at time.Duration) (s sample, err error) {
	debug.FreeOSMemory()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	s = sample{at: at, heap: live[0].Value.Uint64()}
	s.rss, err = measure.RSS()
	return s, err
}

// settled returns the samples after the first fifth of a run, in which memory grows for good
// reasons. run is its duration.
func settled(samples []sample, run time.Duration) []sample {
	for i, s := range samples {
		if s.at >= run/5 {
			return samples[i:]
		}
	}
	return nil
}

// slope returns the growth of a figure in a minute, in per cent of its mean, by least
// squares; 0 with fewer than two samples.
func slope(samples []sample, figure func(*sample) uint64) float64 {
	n := float64(len(samples))
	if n < 2 {
		return 0
	}
	var meanX, meanY float64
	for i := range samples {
		meanX += samples[i].at.Minutes() / n
		meanY += float64(figure(&samples[i])) / n
	}
	var xy, xx float64
	for i := range samples {
		x := samples[i].at.Minutes() - meanX
		xy += x * (float64(figure(&samples[i])) - meanY)
		xx += x * x
	}
	if xx == 0 || meanY == 0 {
		return 0
	}
	return 100 * xy / xx / meanY
}

func heapOf(s *sample) uint64 { return s.heap }
func rssOf(s *sample) uint64  { return s.rss }

func indexOf(s *sample) uint64 { return s.index }
