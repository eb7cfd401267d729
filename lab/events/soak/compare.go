package soak

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// residency says that an owner holds a block in a tier.
type residency struct {
	kind string
	id   uint64
	rank uint32
	hash string
	tier string
}

func (r residency) String() string {
	return fmt.Sprintf("%s %d/%d block %s in %s", r.kind, r.id, r.rank, r.hash, r.tier)
}

// The kinds of owners and the tier of engines' own blocks, as the router's dump
// spells them.
const (
	kindWorker = "worker"
	kindPool   = "pool"
	tierDevice = "device"
)

// difference is how what the router believes differs from what is held.
type difference struct {
	compared int // in either
	lost     int // held, and the router does not know
	phantom  int // believed, and nobody holds it
	first    []string
}

// maxShown bounds the differences that are described.
const maxShown = 5

// truth is what engines and agents hold.
func truth(states []cluster.EngineState, pools []cluster.AgentPool) map[residency]bool {
	held := make(map[residency]bool)
	for _, e := range states {
		for _, h := range e.Blocks {
			held[residency{kindWorker, e.WorkerID, e.Rank, h, tierDevice}] = true
		}
	}
	for _, p := range pools {
		for _, b := range p.Blocks {
			for _, t := range b.Tiers {
				held[residency{kindPool, p.Pool, 0, b.Hash, t}] = true
			}
		}
	}
	return held
}

// belief is what the router has in its index.
func belief(dump cluster.RouterDump) map[residency]bool {
	believed := make(map[residency]bool)
	for i := range dump {
		o := dump[i].Owner()
		for _, b := range dump[i].Blocks() {
			believed[residency{o.Kind.String(), o.ID, uint32(o.Rank), fmt.Sprintf("%016x", b.Hash), dump[i].Tier}] = true
		}
	}
	return believed
}

// compare holds one against the other.
func compare(held, believed map[residency]bool) difference {
	var d difference
	var all []string
	for r := range held {
		d.compared++
		if !believed[r] {
			d.lost++
			all = append(all, "not known:  "+r.String())
		}
	}
	for r := range believed {
		if !held[r] {
			d.compared++
			d.phantom++
			all = append(all, "not there:  "+r.String())
		}
	}
	slices.Sort(all)
	d.first = all[:min(len(all), maxShown)]
	return d
}

// diverged is the number of residencies that only one side has.
func (d *difference) diverged() int { return d.lost + d.phantom }
