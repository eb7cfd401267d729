package metric

import (
	"math/bits"
	"reflect"
	"time"
)

// DurationBuckets is the number of buckets of a Durations with an upper bound: 1 µs to 8.4 s.
const DurationBuckets = 24

// Durations is a histogram of durations, a field of a snapshot struct. The zero value is empty. Its
// owner's lock guards it.
type Durations struct {
	// Counts has in element i the durations of at most 2^i µs that are in no earlier element, and in
	// the last element those that are longer.
	Counts [DurationBuckets + 1]uint64
	Sum    time.Duration
}

// Observe counts a duration. A negative one counts as 0.
func (d *Durations) Observe(t time.Duration) {
	t = max(t, 0)
	micros := uint64(max(t, 1)-1) / 1000 // 0 up to 1 µs
	d.Counts[min(bits.Len64(micros), DurationBuckets)]++
	d.Sum += t
}

// Cumulative returns the number of durations, and by upper bound in seconds the number of those up to it.
func (d *Durations) Cumulative() (count uint64, upTo map[float64]uint64) {
	upTo = make(map[float64]uint64, DurationBuckets)
	for i, n := range d.Counts {
		count += n
		if i < DurationBuckets {
			upTo[float64(uint64(1)<<i)/1e6] = count
		}
	}
	return count, upTo
}

// add adds the durations of o.
func (d *Durations) add(o *Durations) {
	for i, n := range o.Counts {
		d.Counts[i] += n
	}
	d.Sum += o.Sum
}

// durationsType is the type of the fields that are histograms.
var durationsType = reflect.TypeFor[Durations]()

// EachDurations calls visit for every histogram that s declares, in the order of declaration.
func EachDurations[T any](s *T, visit func(f *Field, d *Durations)) {
	v := reflect.ValueOf(s).Elem()
	histograms := fieldsOf(v.Type()).histograms
	for i := range histograms {
		visit(&histograms[i], v.FieldByIndex(histograms[i].path).Addr().Interface().(*Durations))
	}
}
