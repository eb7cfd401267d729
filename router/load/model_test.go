package load

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// twin is the account as anybody would write it first: sets of prefixes, and
// lists that are walked.
type twin struct {
	now time.Duration
	// requests are in the order of arrival.
	requests []*twinRequest
	weights  map[kv.Worker]map[string]float64
	since    map[kv.Worker]time.Duration
}

type twinRequest struct {
	Request
	output, weight float64
	heard          time.Duration
}

func prefixes(sequence []kv.SequenceHash) []string {
	var s []string
	for i := range sequence {
		s = append(s, fmt.Sprint(sequence[:i+1]))
	}
	return s
}

func (w *twin) find(id string) *twinRequest {
	for _, r := range w.requests {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// users counts the requests of a worker that have a prefix.
func (w *twin) users(worker kv.Worker, prefix string) int {
	n := 0
	for _, r := range w.requests {
		if r.Worker == worker && slices.Contains(prefixes(r.Sequence), prefix) {
			n++
		}
	}
	return n
}

func (w *twin) add(r Request) {
	if r.PrefillTokens == 0 {
		r.PrefillDuration = 0
	}
	if len(w.prefills(r.Worker)) == 0 {
		w.since[r.Worker] = w.now
	}
	w.requests = append(w.requests, &twinRequest{Request: r, heard: w.now})
	if w.weights[r.Worker] == nil {
		w.weights[r.Worker] = make(map[string]float64)
	}
	for _, p := range prefixes(r.Sequence) {
		if _, ok := w.weights[r.Worker][p]; !ok {
			w.weights[r.Worker][p] = 1
		}
	}
}

func (w *twin) decay(r *twinRequest, fraction float64) {
	r.weight = r.output * fraction
	for _, p := range prefixes(r.Sequence) {
		if w.users(r.Worker, p) == 1 {
			w.weights[r.Worker][p] = fraction
		}
	}
}

// prefills are a worker's requests with prefill, the anchor first.
func (w *twin) prefills(worker kv.Worker) []*twinRequest {
	var found []*twinRequest
	for _, r := range w.requests {
		if r.Worker == worker && r.PrefillTokens > 0 {
			found = append(found, r)
		}
	}
	return found
}

func modelled(r *twinRequest) bool { return r.PrefillDuration > 0 }

func allModelled(l []*twinRequest) bool {
	return !slices.ContainsFunc(l, func(r *twinRequest) bool { return !modelled(r) })
}

func (w *twin) prefillDone(r *twinRequest) {
	l := w.prefills(r.Worker)
	switch {
	case r.PrefillTokens == 0:
	case l[0] == r:
		w.since[r.Worker] = w.now
	case allModelled(l):
		w.since[r.Worker] = min(w.now, w.since[r.Worker]+r.PrefillDuration)
	}
	r.PrefillTokens = 0
}

func (w *twin) free(r *twinRequest) {
	w.prefillDone(r)
	w.requests = slices.DeleteFunc(w.requests, func(o *twinRequest) bool { return o == r })
	for _, p := range prefixes(r.Sequence) {
		if w.users(r.Worker, p) == 0 {
			delete(w.weights[r.Worker], p)
		}
	}
}

// freeAll frees what is chosen and returns the number.
func (w *twin) freeAll(chosen func(r *twinRequest) bool) int {
	n := 0
	for _, r := range slices.Clone(w.requests) {
		if chosen(r) {
			w.free(r)
			n++
		}
	}
	return n
}

func (w *twin) tokens(worker kv.Worker) int64 {
	l := w.prefills(worker)
	sum := 0
	for _, r := range l {
		sum += r.PrefillTokens
	}
	if len(l) == 0 || !modelled(l[0]) {
		return int64(sum)
	}
	limit := sum
	if !allModelled(l) {
		limit = l[0].PrefillTokens
	}
	done := int64(l[0].PrefillTokens) * int64(w.now-w.since[worker]) / int64(l[0].PrefillDuration)
	return int64(sum) - min(done, int64(limit))
}

func (w *twin) blocks(worker kv.Worker) int32 {
	sum := 0.0
	for _, v := range w.weights[worker] {
		sum += v
	}
	for _, r := range w.requests {
		if r.Worker == worker {
			sum += r.weight
		}
	}
	return int32(math.Round(sum))
}

func (w *twin) columns(m *index.Members) Columns {
	c := Columns{PrefillTokens: []int64{}, ActiveBlocks: []int32{}, Requests: []int32{}}
	for _, member := range m.List {
		n := int32(0)
		for _, r := range w.requests {
			if r.Worker == member.Worker {
				n++
			}
		}
		c.PrefillTokens = append(c.PrefillTokens, w.tokens(member.Worker))
		c.ActiveBlocks = append(c.ActiveBlocks, w.blocks(member.Worker))
		c.Requests = append(c.Requests, n)
	}
	return c
}

func (w *twin) shared(m *index.Members, sequence []kv.SequenceHash) []Shared {
	found := []Shared{}
	for i, member := range m.List {
		n := 0
		for _, p := range prefixes(sequence) {
			if _, ok := w.weights[member.Worker][p]; !ok {
				break
			}
			n++
		}
		if n > 0 {
			found = append(found, Shared{Member: int32(i), Blocks: int32(n)})
		}
	}
	return found
}

// machine drives an account and its twin.
type machine struct {
	fixture
	twin twin
	list *index.Members
}

var (
	ids      = rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"})
	workers  = rapid.SampledFrom([]kv.Worker{worker1, worker2, {ID: 2, Rank: 1}, {ID: 3}})
	sequence = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kv.SequenceHash {
		return kv.SequenceHash(rapid.IntRange(1, 2).Draw(t, "hash"))
	}), 0, 7)
	// Fractions that floats hold exactly, so that the twin rounds as we do.
	fractions = rapid.SampledFrom([]float64{0, .25, .5, .75, 1})
)

func (m *machine) Add(t *rapid.T) {
	r := Request{
		ID: ids.Draw(t, "id"), Worker: workers.Draw(t, "worker"), Sequence: sequence.Draw(t, "sequence"),
		PrefillTokens:   rapid.IntRange(0, 50).Draw(t, "prefill"),
		PrefillDuration: time.Duration(rapid.IntRange(0, 3).Draw(t, "seconds")) * time.Second,
		Provisional:     rapid.Bool().Draw(t, "provisional"),
	}
	err := m.Account.Add(&r)
	if m.twin.find(r.ID) != nil {
		if !errors.Is(err, ErrDuplicateRequest) {
			t.Fatalf("added twice: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	m.twin.add(r)
}

// alive draws a request and applies a sign of life to it.
func (m *machine) alive(t *rapid.T, sign func(id string) error) *twinRequest {
	id := ids.Draw(t, "id")
	r, err := m.twin.find(id), sign(id)
	if (r == nil) != errors.Is(err, ErrUnknownRequest) || (r != nil && err != nil) {
		t.Fatalf("request %v: %v", r, err)
	}
	if r != nil {
		r.heard, r.Provisional = m.twin.now, false
	}
	return r
}

func (m *machine) MarkPrefillCompleted(t *rapid.T) {
	if r := m.alive(t, m.Account.MarkPrefillCompleted); r != nil {
		m.twin.prefillDone(r)
	}
}

func (m *machine) Touch(t *rapid.T) { m.alive(t, m.Account.Touch) }

func (m *machine) AddOutputBlock(t *rapid.T) {
	var decay *float64
	if rapid.Bool().Draw(t, "decays") {
		f := fractions.Draw(t, "decay")
		decay = &f
	}
	r := m.alive(t, func(id string) error { return m.Account.AddOutputBlock(id, decay) })
	if r == nil {
		return
	}
	r.output++
	r.weight++
	if decay != nil {
		m.twin.decay(r, *decay)
	}
}

func (m *machine) Free(t *rapid.T) {
	id := ids.Draw(t, "id")
	r := m.twin.find(id)
	w, ok := m.Account.Free(id)
	if ok != (r != nil) || (ok && w != r.Worker) {
		t.Fatalf("freed %v, %v", w, ok)
	}
	if r != nil {
		m.twin.free(r)
	}
}

func (m *machine) RemoveWorker(t *rapid.T) {
	w := workers.Draw(t, "worker")
	if got, want := m.Account.RemoveWorker(w), m.twin.freeAll(func(r *twinRequest) bool { return r.Worker == w }); got != want {
		t.Fatalf("%d requests of %v, want %d", got, w, want)
	}
}

func (m *machine) Expire(t *rapid.T) {
	d := time.Duration(rapid.IntRange(0, 2500).Draw(t, "ms")) * time.Millisecond
	m.clock.advance(d)
	m.twin.now += d
	over := func(r *twinRequest) bool {
		if r.Provisional {
			return m.twin.now-r.heard > 2*time.Second
		}
		return m.twin.now-r.heard > 5*time.Second
	}
	if got, want := m.Account.Expire(), m.twin.freeAll(over); got != want {
		t.Fatalf("%d expired, want %d", got, want)
	}
}

func (m *machine) Align(t *rapid.T) {
	l := rapid.SliceOfNDistinct(workers, 0, 4, rapid.ID).Draw(t, "members")
	slices.SortFunc(l, kv.Worker.Compare)
	m.list = members(l...)
	m.Account.Align(m.list)
}

func (m *machine) Check(t *rapid.T) {
	if d := gocmp.Diff(m.twin.columns(m.list), *m.Columns()); d != "" {
		t.Fatalf("columns (-twin +account):\n%s", d)
	}
	prompt := sequence.Draw(t, "prompt")
	got := m.Shared([]Shared{}, prompt)
	slices.SortFunc(got, func(a, b Shared) int { return cmp.Compare(a.Member, b.Member) })
	if d := gocmp.Diff(m.twin.shared(m.list, prompt), got); d != "" {
		t.Fatalf("shared of %v (-twin +account):\n%s", prompt, d)
	}
	nodes, blocks := 0, 0
	m.prompts.root.check(t, &nodes, &blocks)
	if s := m.Stats(); s.Requests != len(m.twin.requests) || s.Nodes != nodes || s.DistinctBlocks != blocks {
		t.Fatalf("%+v of %d requests, %d nodes, %d blocks", s, len(m.twin.requests), nodes, blocks)
	}
}

// check checks what a trie relies on below n, and counts.
func (n *node) check(t *rapid.T, nodes, blocks *int) {
	below := make(map[int32]int32)
	for first, child := range n.children {
		if child.parent != n || child.hashes[0] != first || len(child.shares) == 0 {
			t.Fatalf("child %v of %v", child, n)
		}
		if !slices.IsSortedFunc(child.shares, func(a, b share) int { return cmp.Compare(a.slot, b.slot) }) {
			t.Fatalf("not in order: %v", child.shares)
		}
		for _, h := range child.shares {
			below[h.slot] += h.requests
		}
		*nodes++
		*blocks += len(child.hashes)
		child.check(t, nodes, blocks)
	}
	if n.parent == nil {
		return
	}
	ending := n.endingRequests
	for _, h := range n.shares {
		ending -= h.requests - below[h.slot]
		delete(below, h.slot)
	}
	if ending != 0 || len(below) != 0 {
		t.Fatalf("%d of the ends of %v are not held, or %v holds nothing", ending, n, below)
	}
}

// TestModel: an account says what a naive one says after any calls, and leaves
// nothing behind.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := &fakeClock{now: time.Unix(1000, 0)}
		a, err := New(Options{Expiry: 5 * time.Second, Provisional: 2 * time.Second, Now: func() time.Time { return clock.now }})
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{
			fixture: fixture{Account: a, clock: clock},
			twin:    twin{weights: make(map[kv.Worker]map[string]float64), since: make(map[kv.Worker]time.Duration)},
			list:    members(worker1, worker2),
		}
		m.Account.Align(m.list)
		t.Repeat(map[string]func(*rapid.T){
			"add": m.Add, "prefill": m.MarkPrefillCompleted, "touch": m.Touch, "output": m.AddOutputBlock, "free": m.Free,
			"remove": m.RemoveWorker, "expire": m.Expire, "align": m.Align, "": m.Check,
		})
		for _, r := range slices.Clone(m.twin.requests) {
			m.Account.Free(r.ID)
		}
		if s := a.Stats(); s.Requests+s.Workers+s.Blocks+s.DistinctBlocks+s.Nodes+len(a.decaying)+len(a.prompts.root.children) != 0 {
			t.Fatalf("left over: %+v", s)
		}
	})
}
