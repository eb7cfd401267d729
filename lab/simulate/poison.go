package simulate

import (
	"math/rand/v2"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// poison spoils a share of what the routers are told: load reports, and that a request has its first token. The
// zero value spoils nothing.
type poison struct {
	share float64
	rng   *rand.Rand
}

// spoil is a way to spoil a message.
type spoil uint8

// Ways to spoil a message. wrong multiplies or divides the numbers of a report by spoiledFactor, and tells of a first
// token when the request is sent.
const (
	sound spoil = iota
	dropped
	delayed
	wrong
)

const (
	spoiledFactor = 100
	// maxSpoiledDelay bounds the delay of a message.
	maxSpoiledDelay = 5 * time.Second
)

func newPoison(share float64, seed uint64) poison {
	return poison{share, rand.New(rand.NewPCG(seed, 50))}
}

// draw returns the spoil of the next message.
func (p *poison) draw() spoil {
	if p.share == 0 || p.rng.Float64() >= p.share {
		return sound
	}
	return dropped + spoil(p.rng.IntN(3))
}

// delay returns how late a delayed message is.
func (p *poison) delay() time.Duration {
	return time.Duration(p.rng.Float64() * float64(maxSpoiledDelay))
}

// falsify multiplies or divides each number of a report by spoiledFactor.
func (p *poison) falsify(l *kvevent.LoadReport) {
	numbers := []*uint64{&l.Worker.DeviceBlocksUsed, &l.Worker.Running, &l.Worker.Waiting, &l.Worker.CopyBytes, &l.Worker.CopyMicros}
	if l.Owner.Kind == kv.OwnerPool {
		numbers = []*uint64{&l.Pool.BlockBytes, &l.Pool.DiskReadBytes, &l.Pool.DiskReadMicros, &l.Pool.ReadQueue}
	}
	for _, n := range numbers {
		if p.rng.IntN(2) == 0 {
			*n *= spoiledFactor
		} else {
			*n /= spoiledFactor
		}
	}
}

// deliver gives a load report to all routers, unless it is spoiled.
func (c *cluster) deliver(l kvevent.LoadReport) {
	give := func() {
		for _, r := range c.routers {
			r.report(&l)
		}
	}
	switch c.poison.draw() {
	case dropped:
		return
	case delayed:
		c.clock.After(c.poison.delay(), give)
		return
	case wrong:
		c.poison.falsify(&l)
	}
	give()
}

// tellSent draws what the router will be told of the first token. A wrong message comes now, before the token.
func (a *attempt) tellSent() {
	if a.spoil = a.c.poison.draw(); a.spoil == wrong {
		a.completePrefill()
	}
}

// tellFirst tells the router that a request has its first token.
func (a *attempt) tellFirst() {
	switch a.spoil {
	case sound:
		a.completePrefill()
	case delayed:
		a.c.clock.After(a.c.poison.delay(), a.completePrefill)
	}
}

// completePrefill ignores the error: a router forgets a request when its worker drains, or when it ends before a
// delayed message comes.
func (a *attempt) completePrefill() { _ = a.router.decide.MarkPrefillCompleted(a.id) }
