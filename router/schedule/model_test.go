package schedule

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
)

// twin says what a scheduler has to choose, from the list of requests that run
// and the formula as it is written down.
type twin struct {
	config  Config
	running map[string]*running
}

type running struct {
	worker  kv.Worker
	prefill int
	prompt  []kv.SequenceHash
	heard   time.Time
}

// load is what runs on w: its prefill, its distinct blocks and its requests.
func (m *twin) load(w kv.Worker) (prefill int, blocks map[kv.SequenceHash]bool, requests int) {
	blocks = make(map[kv.SequenceHash]bool)
	for _, r := range m.running {
		if r.worker != w {
			continue
		}
		prefill += r.prefill
		requests++
		for _, b := range r.prompt {
			blocks[b] = true
		}
	}
	return prefill, blocks, requests
}

// cost is the formula, term by term.
func (m *twin) cost(r *Request, at int, least int) float64 {
	c := &m.config
	var h index.Hits
	for _, hit := range r.Hits {
		if int(hit.Member) == at {
			h = hit.Hits
		}
	}
	pending, active, requests := m.load(r.Members.List[at].Worker)
	lower := c.HostWeight*float64(h[1]) + c.DiskWeight*float64(h[2]) + c.DiskWeight*float64(h[3])
	cached := int(math.Round((float64(h[0]) + lower) * float64(r.BlockSize)))
	raw := 0.0
	decay := 1.0
	if r.TrackPrefill {
		raw = float64(pending + max(0, r.Tokens-cached) + cached)
		ahead := float64(pending-least) / float64(r.BlockSize)
		decay = 1 / (1 + c.CreditDecay*ahead/math.Ceil(float64(r.Tokens)/float64(r.BlockSize)))
	}
	beyond := 0
	if r.SharedHits != nil {
		beyond = r.SharedHits.Beyond(int(h[0]))
	}
	credit := c.OverlapCredit*decay*float64(h[0]) + lower + c.SharedMultiplier*float64(beyond)
	prefill := max(0, raw/float64(r.BlockSize)-credit)
	for _, b := range r.Sequence {
		active[b] = true
	}
	return c.PrefillLoadScale*prefill + float64(len(active)) + c.ActiveRequestWeight*float64(requests)
}

// prompts draws hashes that are closed under prefixes, as a chain is: the hash of
// a block is the path that leads to it.
func prompts(t *rapid.T) []kv.SequenceHash {
	var out []kv.SequenceHash
	path := kv.SequenceHash(1)
	for range rapid.IntRange(0, 5).Draw(t, "blocks") {
		path = path*3 + kv.SequenceHash(rapid.IntRange(0, 1).Draw(t, "branch"))
		out = append(out, path)
	}
	return out
}

func drawRequest(t *rapid.T, members *index.Members) *Request {
	r := &Request{BlockSize: 16, Sequence: prompts(t), Members: members, TrackPrefill: rapid.Bool().Draw(t, "track")}
	r.Tokens = 16*len(r.Sequence) + rapid.IntRange(1, 15).Draw(t, "tail")
	for m := range members.List {
		if rapid.Bool().Draw(t, "hit") {
			n := func(label string) uint32 { return rapid.Uint32Range(0, 3).Draw(t, label) }
			if h := hits(n("device"), n("host"), n("disk"), n("external")); h.Total() > 0 {
				r.Hits = append(r.Hits, index.Hit{Member: int32(m), Hits: h})
			}
		}
	}
	if rapid.Bool().Draw(t, "shared") {
		pool := FromRanges([]Range{{0, rapid.Uint32Range(0, 6).Draw(t, "pool")}})
		r.SharedHits = &pool
	}
	return r
}

// TestSchedulerMatchesItsTwin: each decision, each load and each count is what
// the formula and the list of running requests say, over random requests, ends,
// completed prefills, removed workers and silence.
func TestSchedulerMatchesItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		c := with(func(c *Config) {
			c.Tie = TieFirst
			c.CreditDecay = rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "decay")
			c.ActiveRequestWeight = rapid.SampledFrom([]float64{0, 2}).Draw(t, "per request")
			c.SharedMultiplier = rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "multiplier")
		})
		s, err := New(Options{Config: c, Load: load.Options{Expiry: time.Minute, Now: func() time.Time { return now }}})
		if err != nil {
			t.Fatal(err)
		}
		run := &twinRun{s: s, m: &twin{config: c, running: make(map[string]*running)}, members: fleet(4), now: &now}
		t.Repeat(map[string]func(*rapid.T){
			"schedule": run.schedule,
			"prefill":  run.prefill,
			"free":     run.free,
			"remove":   run.remove,
			"wait":     run.wait,
			"":         run.check,
		})
	})
}

type twinRun struct {
	s       *Scheduler
	m       *twin
	members *index.Members
	now     *time.Time
	last    int
}

func (r *twinRun) schedule(t *rapid.T) {
	r.expire()
	q := drawRequest(t, r.members)
	r.last++
	q.ID, q.Book = fmt.Sprint(r.last), rapid.Bool().Draw(t, "book")
	least := math.MaxInt
	for _, w := range r.members.List {
		prefill, _, _ := r.m.load(w.Worker)
		least = min(least, prefill)
	}
	best, lowest := 0, math.Inf(1)
	for at := range r.members.List {
		if cost := r.m.cost(q, at, least); cost < lowest-1e-9 {
			best, lowest = at, cost
		}
	}
	got, err := r.s.Schedule(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	// Two costs that differ by rounding alone are equal to the twin.
	if math.Abs(got.Cost-lowest) > 1e-9 || got.Member != best && math.Abs(r.m.cost(q, got.Member, least)-lowest) > 1e-9 {
		t.Fatalf("member %d at %v, want %d at %v", got.Member, got.Cost, best, lowest)
	}
	if q.Book {
		prefill := 0
		if q.TrackPrefill {
			prefill = max(0, q.Tokens-got.CachedTokens)
		}
		r.m.running[q.ID] = &running{got.Worker, prefill, q.Sequence, *r.now}
	}
}

func (r *twinRun) pick(t *rapid.T) string {
	return fmt.Sprint(rapid.IntRange(0, r.last).Draw(t, "id"))
}

func (r *twinRun) prefill(t *rapid.T) {
	id := r.pick(t)
	entry := r.m.running[id]
	if err := r.s.MarkPrefillCompleted(id); (err == nil) != (entry != nil) {
		t.Fatalf("prefill of %s: %v", id, err)
	}
	if entry != nil {
		entry.prefill, entry.heard = 0, *r.now
	}
}

func (r *twinRun) free(t *rapid.T) {
	id := r.pick(t)
	if got := r.s.Free(id); got != (r.m.running[id] != nil) {
		t.Fatalf("free of %s: %v", id, got)
	}
	delete(r.m.running, id)
}

func (r *twinRun) remove(t *rapid.T) {
	w := r.members.List[rapid.IntRange(0, len(r.members.List)-1).Draw(t, "worker")].Worker
	want := 0
	for id, entry := range r.m.running {
		if entry.worker == w {
			delete(r.m.running, id)
			want++
		}
	}
	if got := r.s.RemoveWorker(w); got != want {
		t.Fatalf("%d requests of worker %s ended, want %d", got, w, want)
	}
}

func (r *twinRun) wait(t *rapid.T) {
	*r.now = r.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
	r.s.Tick()
	r.expire()
}

func (r *twinRun) expire() {
	for id, entry := range r.m.running {
		if r.now.Sub(entry.heard) > time.Minute {
			delete(r.m.running, id)
		}
	}
}

func (r *twinRun) check(t *rapid.T) {
	q := drawRequest(t, r.members)
	got, err := r.s.PotentialLoads(nil, q)
	if err != nil {
		t.Fatal(err)
	}
	for at, l := range got {
		prefill, active, _ := r.m.load(l.Worker)
		for _, b := range q.Sequence {
			active[b] = true
		}
		if q.TrackPrefill {
			prefill += max(0, q.Tokens-CachedTokens(r.m.config.Effective(q.hitsOf(int32(at))), 16))
		}
		if want := len(active) + q.Blocks() - len(q.Sequence); l.PrefillTokens != prefill || l.DecodeBlocks != want {
			t.Fatalf("%+v, want %d tokens and %d blocks", l, prefill, want)
		}
	}
	if stats := r.s.Stats(); stats.Load.Requests != len(r.m.running) {
		t.Fatalf("%d requests, want %d", stats.Load.Requests, len(r.m.running))
	}
}
