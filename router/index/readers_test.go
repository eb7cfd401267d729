package index_test

import (
	"flag"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// The cast of TestReadersBesideAWriter. All of them share one prompt.
var (
	grower   = worker(1, 0) // its chain only grows
	keeper   = worker(2, 0) // keeps a prefix, the rest comes and goes
	replaced = worker(3, 0) // is replaced back and forth between two dumps
	tiered   = worker(4, 0) // has a fixed device prefix, its pool's chain grows
	nobody   = worker(5, 0) // never has anything of the prompt, as the branchers
	cleaned  = worker(6, 0) // is filled and then cleared or removed
	guest    = worker(7, 0) // comes and goes, with blocks that stay
	patched  = worker(8, 0) // has a hole now and then where its pool has the blocks
)

// branchers have what branches off the prompt, and nothing of it.
var branchers = []kv.Worker{worker(20, 0), worker(21, 0), worker(22, 0)}

const (
	promptBlocks  = 1500
	keeperKeeps   = 333
	replacedShort = 700
	replacedLong  = 1200
	tieredDevice  = 200
	guestHas      = 450
	tieredPool    = 9
	cleanedHas    = 600
	patchedPool   = 10
	patchedHas    = 110
	patchedFrom   = 40
	patchedTo     = 60
)

// script is what the writer of TestReadersBesideAWriter does. It tells readers
// what is certain.
type script struct {
	t      *testing.T
	x      *index.Index
	rng    *rand.Rand
	prompt []kv.LocalHash
	// grown and pooled are how many blocks grower and tiered's pool have for sure.
	grown, pooled    atomic.Int64
	keeperAt, cleans int
	flip             bool
	// lossy is set when the index has no room for everything: then what is seen may
	// be less, and still never more.
	lossy bool
}

func (s *script) apply(e kvevent.RouterEvent) {
	if err := s.x.Apply(&e); err != nil {
		s.t.Error(err)
	}
}

func (s *script) step() {
	switch s.rng.IntN(9) {
	case 0:
		s.grow(kv.WorkerOwner(grower), kv.TierDevice, &s.grown)
	case 1:
		s.grow(kv.PoolOwner(tieredPool), kv.TierHost, &s.pooled)
	case 2:
		s.moveKeeper()
	case 3:
		s.replace()
	case 4:
		s.clean()
	case 5:
		s.branch()
	case 6:
		if err := s.x.SetMember(guest, 0, s.rng.IntN(2) == 0); err != nil {
			s.t.Error(err)
		}
	case 7:
		s.patch()
	case 8:
		s.x.Sweep(s.rng.IntN(20))
	}
}

// grow stores the next blocks of an owner, now and then the last of them first.
func (s *script) grow(o kv.Owner, tier kv.Tier, has *atomic.Int64) {
	from := int(has.Load())
	to := min(promptBlocks, from+1+s.rng.IntN(8))
	if from == to {
		return
	}
	middle := from + s.rng.IntN(to-from)
	if s.rng.IntN(3) == 0 && middle > from {
		s.apply(stored(o, tier, s.prompt, middle, to))
		s.apply(stored(o, tier, s.prompt, from, middle))
	} else {
		s.apply(stored(o, tier, s.prompt, from, to))
	}
	has.Store(int64(to))
}

// moveKeeper stores or removes blocks beyond what the keeper keeps.
func (s *script) moveKeeper() {
	o := kv.WorkerOwner(keeper)
	to := keeperKeeps + s.rng.IntN(promptBlocks-keeperKeeps)
	switch {
	case to > s.keeperAt:
		s.apply(stored(o, kv.TierDevice, s.prompt, s.keeperAt, to))
	case to < s.keeperAt:
		s.apply(removed(o, kv.TierDevice, s.prompt, to, s.keeperAt))
	}
	s.keeperAt = to
}

// patch makes a hole and fills it, many times.
func (s *script) patch() {
	o := kv.WorkerOwner(patched)
	open, fill := removed(o, kv.TierHost, s.prompt, patchedFrom, patchedTo), stored(o, kv.TierHost, s.prompt, patchedFrom, patchedTo)
	for range 10 {
		s.apply(open)
		s.apply(fill)
	}
}

func (s *script) replace() {
	n := replacedShort
	if s.flip = !s.flip; s.flip {
		n = replacedLong
	}
	o := kv.WorkerOwner(replaced)
	var dump []kvevent.RouterEvent
	for at := 0; at < n; at += 100 {
		dump = append(dump, stored(o, kv.TierDevice, s.prompt, at, min(n, at+100)))
	}
	s.rng.Shuffle(len(dump), func(i, j int) { dump[i], dump[j] = dump[j], dump[i] })
	if err := s.x.Replace(o, dump); err != nil {
		s.t.Error(err)
	}
}

// clean makes a worker's blocks come and go as a whole.
func (s *script) clean() {
	o := kv.WorkerOwner(cleaned)
	switch s.cleans++; s.cleans % 3 {
	case 0:
		s.x.RemoveOwner(o)
	case 1:
		// A store may be seen in parts, a dump not.
		dump := []kvevent.RouterEvent{stored(o, kv.TierDevice, s.prompt, 0, cleanedHas)}
		if err := s.x.Replace(o, dump); err != nil {
			s.t.Error(err)
		}
	case 2:
		s.apply(cleared(o))
	}
}

// branch stores and removes what branches off the prompt anywhere.
func (s *script) branch() {
	o := kv.WorkerOwner(branchers[s.rng.IntN(len(branchers))])
	at := s.rng.IntN(promptBlocks)
	other := slices.Concat(s.prompt[:at], series(1_000_000*(1+s.rng.IntN(5)), 1+s.rng.IntN(300)))
	s.apply(stored(o, kv.TierDevice, other, at, len(other)))
	if s.rng.IntN(2) == 0 {
		s.apply(removed(o, kv.TierDevice, other, at, len(other)))
	}
}

// reader asks all the time and checks what must hold between call and return.
func (s *script) reader(seed uint64, stop *atomic.Bool) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var m index.Matches
	var last int64
	for !stop.Load() {
		asked := promptBlocks
		if rng.IntN(2) == 0 {
			asked = rng.IntN(promptBlocks + 1)
		}
		grown, pooled := s.grown.Load(), s.pooled.Load()
		reading := index.Reading(rng.IntN(2))
		s.x.Match(&m, s.prompt[:asked], reading)
		if !slices.IsSortedFunc(m.Hits, func(a, b index.Hit) int { return int(a.Member - b.Member) }) {
			s.t.Errorf("hits out of order: %v", m.Hits)
		}
		full := int64(hitsOf(&m, grower)[kv.TierDevice])
		s.within("grower", full, min(int64(asked), grown), int64(asked))
		if asked == promptBlocks {
			s.within("grower again", full, last, promptBlocks)
			last = full
		}
		s.within("keeper", int64(hitsOf(&m, keeper)[kv.TierDevice]), int64(min(asked, keeperKeeps)), int64(asked))
		s.oneOf("replaced", asked, hitsOf(&m, replaced), replacedShort, replacedLong)
		for _, w := range append(branchers, nobody) {
			s.oneOf("nobody", asked, hitsOf(&m, w), 0)
		}
		s.oneOf("guest", asked, hitsOf(&m, guest), 0, guestHas)
		s.oneOf("cleaned", asked, hitsOf(&m, cleaned), 0, cleanedHas)
		h := hitsOf(&m, tiered)
		s.within("tiered", int64(h[kv.TierDevice]), int64(min(asked, tieredDevice)), int64(min(asked, tieredDevice)))
		h = hitsOf(&m, patched)
		s.within("patched", int64(h[kv.TierHost]), int64(min(asked, patchedHas)), int64(min(asked, patchedHas)))
		h = hitsOf(&m, tiered)
		s.within("tiered's pool", int64(h.Total()), min(int64(asked), pooled), int64(asked))
		if rng.IntN(200) == 0 {
			s.x.Digest(kv.WorkerOwner(grower))
			s.x.Stats()
		}
	}
}

func (s *script) within(who string, got, low, high int64) {
	if got < low && !s.lossy || got > high {
		s.t.Errorf("%s has %d blocks, want %d..%d", who, got, low, high)
	}
}

// oneOf checks device hits against states that last a whole answer; a question
// shorter than a state sees its beginning.
func (s *script) oneOf(who string, asked int, got index.Hits, states ...int) {
	for _, n := range states {
		if n = min(asked, n); got == device(uint32(n)) || s.lossy && got.Total() <= uint32(n) {
			return
		}
	}
	s.t.Errorf("%s has %v of %d blocks, want one of %v", who, got, asked, states)
}

// TestReadersBesideAWriter: whatever a writer does meanwhile, a chain that only
// grows is never seen to shrink, what is always held is always seen, an owner that
// is replaced, cleared or removed is seen before or after it and never between,
// and a worker that has nothing is never credited. Every other act is played where
// there is too little room.
func TestReadersBesideAWriter(t *testing.T) {
	for act := range *readerActs {
		playBesideReaders(t, uint64(act))
	}
}

// readerActs is how often the writer plays; each act takes a second, and five with
// the race detector.
var readerActs = flag.Int("acts", 2, "acts of TestReadersBesideAWriter")

func playBesideReaders(t *testing.T, seed uint64) {
	s := &script{
		t: t, x: newIndex(t, index.Options{}), rng: rand.New(rand.NewPCG(seed, 7)),
		prompt: series(1, promptBlocks), keeperAt: keeperKeeps, lossy: seed%2 == 1,
	}
	if s.lossy {
		s.x = newIndex(t, index.Options{MaxBytes: 256 << 10})
	}
	join(t, s.x, grower, keeper, replaced, nobody, cleaned, guest)
	join(t, s.x, branchers...)
	for w, pool := range map[kv.Worker]uint64{tiered: tieredPool, patched: patchedPool} {
		if err := s.x.SetMember(w, pool, true); err != nil {
			t.Fatal(err)
		}
	}
	s.apply(stored(kv.WorkerOwner(patched), kv.TierHost, s.prompt, 0, patchedHas))
	s.apply(stored(kv.PoolOwner(patchedPool), kv.TierHost, s.prompt, patchedFrom, patchedTo))
	s.apply(stored(kv.WorkerOwner(keeper), kv.TierDevice, s.prompt, 0, keeperKeeps))
	s.apply(stored(kv.WorkerOwner(tiered), kv.TierDevice, s.prompt, 0, tieredDevice))
	s.apply(stored(kv.WorkerOwner(guest), kv.TierDevice, s.prompt, 0, guestHas))
	s.replace()
	var stop atomic.Bool
	var readers sync.WaitGroup
	for n := range uint64(3) {
		readers.Go(func() { s.reader(n, &stop) })
	}
	for range 3000 {
		s.step()
	}
	stop.Store(true)
	readers.Wait()
	if n := s.x.Stats().Evicted; s.lossy == (n == 0) {
		t.Errorf("%d blocks were evicted", n)
	}
}
