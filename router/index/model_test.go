package index_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// model holds an index against its twin.
type model struct {
	x       *index.Index
	twin    *twin
	prompts [][]kv.LocalHash
	m       index.Matches // reused
}

// The workers and pools of a model.
const (
	modelWorkers = 4
	modelPools   = 2
)

func newModel(t *rapid.T, o index.Options, prompts [][]kv.LocalHash) *model {
	x, err := index.New(o)
	if err != nil {
		t.Fatal(err)
	}
	m := &model{x: x, twin: newTwin(), prompts: prompts}
	// Most of the time workers are known from the start.
	for n := range modelWorkers {
		m.member(t, n, uint64(n%(modelPools+1)), true)
	}
	return m
}

// drawTree draws prompts of which later ones branch off earlier ones, at any
// place.
func drawTree(t *rapid.T, lengths []int) [][]kv.LocalHash {
	var prompts [][]kv.LocalHash
	for n := range rapid.IntRange(1, 6).Draw(t, "prompts") {
		var shared []kv.LocalHash
		if n > 0 {
			trunk := prompts[rapid.IntRange(0, n-1).Draw(t, "trunk")]
			shared = trunk[:drawPlace(t, len(trunk), "branch")]
		}
		own := series(1000*n, rapid.SampledFrom(lengths).Draw(t, "own"))
		prompts = append(prompts, slices.Concat(shared, own))
	}
	return prompts
}

// drawPlace draws a place in 0..n, with those where runs may begin and end more
// often than others.
func drawPlace(t *rapid.T, n int, label string) int {
	switch rapid.IntRange(0, 3).Draw(t, label+" kind") {
	case 0:
		edges := []int{0, 1, 127, 128, 129, 255, 256, 4095, 4096, 4097, n - 1, n}
		return min(n, max(0, rapid.SampledFrom(edges).Draw(t, label)))
	}
	return rapid.IntRange(0, n).Draw(t, label)
}

// drawRange draws from..to within a prompt, with at least one block if it has any.
func drawRange(t *rapid.T, n int) (from, to int) {
	from, to = drawPlace(t, n, "from"), drawPlace(t, n, "to")
	if from > to {
		from, to = to, from
	}
	if from == to && to < n {
		to++
	}
	return from, to
}

func modelWorker(n int) kv.Worker { return worker(n/2+1, n%2) }

func drawModelOwner(t *rapid.T) kv.Owner {
	n := rapid.IntRange(0, modelWorkers+modelPools-1).Draw(t, "owner")
	if n < modelWorkers {
		return kv.WorkerOwner(modelWorker(n))
	}
	return kv.PoolOwner(uint64(n - modelWorkers + 1))
}

func drawTier(t *rapid.T) kv.Tier {
	return rapid.SampledFrom([]kv.Tier{kv.TierDevice, kv.TierDevice, kv.TierDevice, kv.TierHost, kv.TierHost, kv.TierDisk, kv.TierExternal}).Draw(t, "tier")
}

func (m *model) drawPrompt(t *rapid.T) []kv.LocalHash {
	return m.prompts[rapid.IntRange(0, len(m.prompts)-1).Draw(t, "prompt")]
}

func (m *model) member(t *rapid.T, n int, pool uint64, known bool) {
	w := modelWorker(n)
	if err := m.x.SetMember(w, pool, known); err != nil {
		t.Fatal(err)
	}
	m.twin.member(w, pool, known)
}

func (m *model) apply(t *rapid.T, events ...kvevent.RouterEvent) {
	if len(events) == 1 {
		if err := m.x.Apply(&events[0]); err != nil {
			t.Fatal(err)
		}
	} else if refused, err := m.x.ApplyAll(events); refused > 0 || err != nil {
		t.Fatalf("%d refused: %v", refused, err)
	}
	for i := range events {
		m.twin.apply(&events[i])
	}
}

// message draws small events of one owner or two, as a publisher puts them into a message: of blocks that
// follow each other or not, and removals of blocks from before and from the message itself.
func (m *model) message(t *rapid.T) {
	owners := []kv.Owner{drawModelOwner(t), drawModelOwner(t)}
	prompt, tier := m.drawPrompt(t), drawTier(t)
	if len(prompt) == 0 {
		return
	}
	at := drawPlace(t, len(prompt)-1, "start")
	var events []kvevent.RouterEvent
	for range rapid.IntRange(2, 40).Draw(t, "events") {
		o := owners[min(1, rapid.IntRange(0, 20).Draw(t, "which")/20)]
		n := min(len(prompt)-at, rapid.SampledFrom([]int{1, 1, 1, 2, 40}).Draw(t, "blocks"))
		switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
		case kind < 5:
			events = append(events, stored(o, tier, prompt, at, at+n))
			at = min(at+n, len(prompt)-1)
		case kind < 7:
			events = append(events, removed(o, tier, prompt, at, at+n))
		case kind < 9:
			at = drawPlace(t, len(prompt)-1, "next")
		default:
			tier = drawTier(t)
		}
	}
	if len(events) > 1 {
		m.apply(t, events...)
	}
}

// drawStores stores blocks in chunks, as an engine does, or one by one; in order or,
// so that children come before their parents, in any.
func drawStores(t *rapid.T, o kv.Owner, tier kv.Tier, prompt []kv.LocalHash, from, to int) []kvevent.RouterEvent {
	size := rapid.SampledFrom([]int{1, 7, 128, 128, 100_000}).Draw(t, "chunk")
	if size == 1 && to-from > 300 {
		size = 128
	}
	var events []kvevent.RouterEvent
	for at := from; at < to; at += size {
		events = append(events, stored(o, tier, prompt, at, min(to, at+size)))
	}
	if len(events) < 100 && rapid.IntRange(0, 2).Draw(t, "any order") == 0 {
		events = rapid.Permutation(events).Draw(t, "order")
	}
	return events
}

func (m *model) store(t *rapid.T) {
	prompt := m.drawPrompt(t)
	from, to := drawRange(t, len(prompt))
	m.apply(t, drawStores(t, drawModelOwner(t), drawTier(t), prompt, from, to)...)
}

// storeNext goes on where an owner has got to in a prompt, as an engine does.
func (m *model) storeNext(t *rapid.T) {
	prompt, o, tier := m.drawPrompt(t), drawModelOwner(t), drawTier(t)
	seq := kv.AppendSequence(nil, prompt)
	from := slices.IndexFunc(seq, func(h kv.SequenceHash) bool { return !m.twin.held[o][pair{h, tier}] })
	if from < 0 {
		return
	}
	to := min(len(prompt), from+rapid.SampledFrom([]int{1, 5, 128, len(prompt)}).Draw(t, "next"))
	m.apply(t, stored(o, tier, prompt, from, to))
}

func (m *model) remove(t *rapid.T) {
	prompt, o, tier := m.drawPrompt(t), drawModelOwner(t), drawTier(t)
	from, to := drawRange(t, len(prompt))
	if rapid.Bool().Draw(t, "from the tail") {
		// What an engine evicts: the end of what is held.
		seq := kv.AppendSequence(nil, prompt)
		for to = len(seq); to > 0 && !m.twin.held[o][pair{seq[to-1], tier}]; {
			to--
		}
		from = max(0, to-rapid.IntRange(0, 150).Draw(t, "how many"))
	}
	e := removed(o, tier, prompt, from, to)
	switch rapid.IntRange(0, 5).Draw(t, "how") {
	case 0:
		if len(e.Removed) < 100 {
			e.Removed = rapid.Permutation(e.Removed).Draw(t, "order")
		}
	case 1:
		slices.Reverse(e.Removed)
	case 2:
		e.Removed = append(e.Removed, 12345, kv.SequenceHash(rapid.Uint64().Draw(t, "unknown")))
	case 3: // every other one
		e.Removed = slices.DeleteFunc(e.Removed, func(h kv.SequenceHash) bool { return h%2 == 0 })
	}
	m.apply(t, e)
}

func (m *model) replace(t *rapid.T) {
	o := drawModelOwner(t)
	var events []kvevent.RouterEvent
	for range rapid.IntRange(0, 3).Draw(t, "parts") {
		prompt := m.drawPrompt(t)
		from, to := drawRange(t, len(prompt))
		events = append(events, drawStores(t, o, drawTier(t), prompt, from, to)...)
	}
	if len(events) < 100 && rapid.Bool().Draw(t, "shuffled") {
		events = rapid.Permutation(events).Draw(t, "dump order")
	}
	if err := m.x.Replace(o, events); err != nil {
		t.Fatal(err)
	}
	m.twin.replace(o, events)
}

// question draws a prompt, cut anywhere and perhaps gone on with otherwise.
func (m *model) question(t *rapid.T) []kv.LocalHash {
	prompt := m.drawPrompt(t)
	prompt = prompt[:drawPlace(t, len(prompt), "asked")]
	if rapid.Bool().Draw(t, "diverges") {
		prompt = slices.Concat(prompt, locals(1<<40, 1<<41))
	}
	return prompt
}

func (m *model) checkMatch(t *rapid.T) {
	prompt := m.question(t)
	for _, r := range []index.Reading{index.Continuation, index.Union} {
		m.x.Match(&m.m, prompt, r)
		same(t, fmt.Sprintf("match of %d blocks, reading %d", len(prompt), r), workerHits(t, &m.m), m.twin.match(prompt, r))
		same(t, "members", m.m.Members.List, m.twin.members())
	}
}

func (w *twin) members() []index.Member {
	var list []index.Member
	for worker, pool := range w.pools {
		list = append(list, index.Member{Worker: worker, Pool: pool})
	}
	slices.SortFunc(list, func(a, b index.Member) int { return a.Worker.Compare(b.Worker) })
	return list
}

func (m *model) checkDigests(t *rapid.T, x *index.Index) {
	for n := range modelWorkers + modelPools {
		o := kv.PoolOwner(uint64(n - modelWorkers + 1))
		if n < modelWorkers {
			o = kv.WorkerOwner(modelWorker(n))
		}
		sum, pairs := x.Digest(o)
		wantSum, wantPairs := m.twin.digest(o)
		same(t, "digest of "+o.String(), [2]uint64{sum, pairs}, [2]uint64{wantSum, wantPairs})
	}
}

// checkDump puts a dump of the index, or what a walk shows, into an empty one, which
// must give the same answers, digests and dump.
func (m *model) checkDump(t *rapid.T) {
	show := func(visit func(e *kvevent.RouterEvent) bool) { index.DumpAll(m.x, visit) }
	if rapid.Bool().Draw(t, "walk") {
		show = m.x.Walk
	}
	got, events := shownBy(t, show)
	sameDump(t, "dump", got, m.twin.dump())
	again, err := index.New(index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range events {
		if err := again.Apply(&events[i]); err != nil {
			t.Fatal(err)
		}
	}
	for w, pool := range m.twin.pools {
		if err := again.SetMember(w, pool, true); err != nil {
			t.Fatal(err)
		}
	}
	m.checkDigests(t, again)
	replayed, _ := dumpOf(t, again)
	sameDump(t, "dump of the dump", replayed, got)
	prompt := m.question(t)
	for _, r := range []index.Reading{index.Continuation, index.Union} {
		same(t, "match after a replay", match(t, again, prompt, r), m.twin.match(prompt, r))
	}
}

func (m *model) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"store":      m.store,
		"store next": m.storeNext,
		"store more": m.storeNext,
		"remove":     m.remove,
		"evict":      m.remove,
		"replace":    m.replace,
		"message":    m.message,
		"messages":   m.message,
		"clear": func(t *rapid.T) {
			m.apply(t, cleared(drawModelOwner(t)))
		},
		"remove owner": func(t *rapid.T) {
			o := drawModelOwner(t)
			m.x.RemoveOwner(o)
			delete(m.twin.held, o)
		},
		"member": func(t *rapid.T) {
			m.member(t, rapid.IntRange(0, modelWorkers-1).Draw(t, "worker"),
				uint64(rapid.IntRange(0, modelPools).Draw(t, "pool")), rapid.IntRange(0, 3).Draw(t, "known") > 0)
		},
		"sweep": func(t *rapid.T) { m.x.Sweep(rapid.IntRange(0, 1000).Draw(t, "runs")) },
		"dump":  m.checkDump,
		"": func(t *rapid.T) {
			m.checkMatch(t)
			m.checkDigests(t, m.x)
		},
	}
}

func same[T any](t failer, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.AllowUnexported(dumped{}, pair{}, place{})); diff != "" {
		t.Fatalf("%s differs (-want +got):\n%s", what, diff)
	}
}

// sameDump is same for what may be large.
func sameDump(t failer, what string, got, want map[dumped]bool) {
	t.Helper()
	if !maps.Equal(got, want) {
		same(t, what, got, want)
	}
}

// TestModelOfShortPrompts: after any sequence of changes to short prompts that
// branch everywhere, the index answers every question as a map of sets does.
func TestModelOfShortPrompts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prompts := make([][]kv.LocalHash, 0, 8)
		for range rapid.IntRange(1, 8).Draw(t, "prompts") {
			if p := drawShort(t, "prompt"); len(p) > 0 {
				prompts = append(prompts, p)
			}
		}
		prompts = append(prompts, locals(1))
		t.Repeat(newModel(t, index.Options{}, prompts).actions())
	})
}

// TestModelOfLongPrompts: the same for prompts of many runs that branch at their
// edges and within them.
func TestModelOfLongPrompts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prompts := drawTree(t, []int{1, 30, 127, 128, 129, 200, 400})
		t.Repeat(newModel(t, index.Options{}, prompts).actions())
	})
}

// TestModelOfVeryLongPrompts: the same for prompts of thousands of blocks.
func TestModelOfVeryLongPrompts(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	rapid.Check(t, func(t *rapid.T) {
		prompts := drawTree(t, []int{1, 128, 4096, 4097})
		m := newModel(t, index.Options{}, prompts[:min(3, len(prompts))])
		actions := m.actions()
		for range 6 {
			keys := []string{"store", "store", "store next", "store next", "remove", "replace", "sweep", "clear", "member"}
			actions[rapid.SampledFrom(keys).Draw(t, "action")](t)
			m.checkMatch(t)
		}
		m.checkDigests(t, m.x)
		m.checkDump(t)
	})
}

// drawShort draws a prompt of few blocks and few kinds of them.
func drawShort(t *rapid.T, label string) []kv.LocalHash {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kv.LocalHash {
		return kv.LocalHash(rapid.IntRange(1, 3).Draw(t, "local"))
	}), 0, 6).Draw(t, label)
}
