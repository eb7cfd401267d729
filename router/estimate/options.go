package estimate

import (
	"cmp"
	"fmt"
	"time"
)

// Options bound an Estimator. The zero value is ready for use.
type Options struct {
	// MinSamples is how many samples a model needs before its workers have prices, 1..16; 0 means 3.
	MinSamples int
	// MaxAge is how long a reported rate holds after its last sample; 0 means 10 minutes.
	MaxAge time.Duration
	// MinTokens is how many tokens make a sample while further prompts are pending; 0 means 256.
	MinTokens int
	// MaxWorkers bounds the known workers; 0 means 1<<16.
	MaxWorkers int
	// MaxRequests bounds the followed prefills; 0 means 1<<17.
	MaxRequests int
	// Now is the monotonic clock; nil means time.Now.
	Now func() time.Time
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	for _, f := range []struct {
		name   string
		v, max int
	}{
		{"min samples", o.MinSamples, maxSamples},
		{"min tokens", o.MinTokens, 1 << 20},
		{"max workers", o.MaxWorkers, 1 << 20},
		{"max requests", o.MaxRequests, 1 << 24},
	} {
		if f.v < 0 || f.v > f.max {
			return fmt.Errorf("estimate %s: %d is not in 0..%d", f.name, f.v, f.max)
		}
	}
	if o.MaxAge < 0 {
		return fmt.Errorf("estimate max age: %v is negative", o.MaxAge)
	}
	return nil
}

// withDefaults returns o with defaults in place of zeros.
func (o Options) withDefaults() Options {
	for _, f := range []struct {
		v  *int
		to int
	}{{&o.MinSamples, 3}, {&o.MinTokens, 256}, {&o.MaxWorkers, 1 << 16}, {&o.MaxRequests, 1 << 17}} {
		if *f.v == 0 {
			*f.v = f.to
		}
	}
	o.MaxAge = cmp.Or(o.MaxAge, 10*time.Minute)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}
