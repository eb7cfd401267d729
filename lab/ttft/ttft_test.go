package ttft

import (
	"slices"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router/schedule"
)

const gigabyte = 1e9

// machines returns four nodes of two workers, whose disks read bytes per second.
func machines(diskBytes float64) *hardware {
	return &hardware{
		prefill: slices.Repeat([]float64{10_000}, 8), perNode: 2,
		hostBytes: 12 * gigabyte, diskBytes: diskBytes,
		device: 1500, host: 3000, disk: 60_000,
	}
}

// users keep the machines about half busy, with prompts of up to 20,000 tokens.
func users(seed uint64) *traffic {
	return &traffic{
		seed: seed, length: 5 * time.Minute, sessions: 2, systems: 12, documents: 120, long: 0.6, think: 25 * time.Second,
	}
}

// scenario is a cluster and its users.
type scenario struct {
	name     string
	hardware *hardware
	change   func(*traffic)
	// atMost is what the mean time by cost may be, with every seed, next to that by
	// the weights as they are by default.
	atMost float64
}

func scenarios() []scenario {
	mixed := machines(1.2 * gigabyte)
	mixed.prefill = slices.Repeat([]float64{5_000, 15_000}, 4)
	roomy := machines(1.2 * gigabyte)
	roomy.device = 100_000
	return []scenario{
		{"disk 10x slower than host", machines(1.2 * gigabyte), func(*traffic) {}, 0.85},
		{"the same, and twice the users", machines(1.2 * gigabyte), func(u *traffic) { u.sessions *= 2 }, 0.6},
		{"the same, and workers of two speeds", mixed, func(*traffic) {}, 0.7},
		{"disk as fast as host", machines(12 * gigabyte), func(*traffic) {}, 1.02},
		{"short prompts", machines(1.2 * gigabyte), func(u *traffic) { u.long, u.sessions = 0, 4 }, 1.02},
		{"all fits on the devices, few users", roomy, func(u *traffic) { u.sessions = 0.5 }, 1.02},
	}
}

// config returns the weights as they are by default.
func config() schedule.Config {
	c := schedule.DefaultConfig()
	c.Seed = 1
	return c
}

// tuned returns weights chosen by hand for machines whose disk is not worth reading: what
// somebody gets who knows the machines and tries.
func tuned() schedule.Config {
	c := config()
	c.PrefillLoadScale, c.HostWeight, c.DiskWeight = 16, 0.95, 0
	return c
}

func byCost() schedule.Config {
	c := config()
	c.Cost = true
	return c
}

// TestTTFT: the cost mode brings first tokens sooner than weights where tiers or
// workers differ in what weights do not know, and no later where they do not.
func TestTTFT(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			for seed := range seeds {
				u := users(seed + 1)
				s.change(u)
				prompts := u.prompts()
				weights := simulate(t, s.hardware, prompts, config())
				hand := simulate(t, s.hardware, prompts, tuned())
				cost := simulate(t, s.hardware, prompts, byCost())
				ratio := float64(cost.mean) / float64(weights.mean)
				t.Logf("seed %d  weights           %s", seed+1, weights)
				t.Logf("        weights, by hand  %s", hand)
				t.Logf("        cost              %s  mean x %.2f", cost, ratio)
				if ratio > s.atMost {
					t.Errorf("seed %d: mean x %.2f, want at most %.2f", seed+1, ratio, s.atMost)
				}
				if cost.byCost < cost.requests*8/10 {
					t.Errorf("seed %d: %d of %d requests by cost", seed+1, cost.byCost, cost.requests)
				}
			}
		})
	}
}
