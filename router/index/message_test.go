package index_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"weak"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// messages are two indexes that get the same events: one by Apply, all by ApplyAll.
type messages struct {
	one, all *index.Index
	prompts  [][]kv.LocalHash
	owners   []kv.Owner
	at       int // where the next event most likely begins
}

func newMessages(t *rapid.T) *messages {
	m := &messages{prompts: drawTree(t, []int{1, 30, 128, 200})}
	var o index.Options
	members := 3
	if rapid.Bool().Draw(t, "few owners") {
		members = rapid.IntRange(0, 2).Draw(t, "members")
		o.MaxOwners = members + rapid.IntRange(1, 2).Draw(t, "more owners")
	}
	for n := range 3 {
		m.owners = append(m.owners, kv.WorkerOwner(modelWorker(n)))
	}
	m.owners = append(m.owners, kv.PoolOwner(1))
	for _, x := range []**index.Index{&m.one, &m.all} {
		var err error
		if *x, err = index.New(o); err != nil {
			t.Fatal(err)
		}
		for n := range members {
			if err := (*x).SetMember(modelWorker(n), 1, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	return m
}

// event draws an event of any kind. Most events go on with the first prompt of the first owner.
func (m *messages) event(t *rapid.T) kvevent.RouterEvent {
	o, prompt, tier := m.owners[0], m.prompts[0], kv.TierDevice
	switch rapid.IntRange(0, 20).Draw(t, "other") {
	case 0:
		o = rapid.SampledFrom(m.owners).Draw(t, "owner")
	case 1:
		tier = drawTier(t)
	case 2, 3, 4:
		prompt = rapid.SampledFrom(m.prompts).Draw(t, "prompt")
	case 5, 6, 7:
		m.at = rapid.IntRange(0, 200).Draw(t, "at")
	}
	from := min(m.at, len(prompt)-1)
	to := min(len(prompt), from+rapid.SampledFrom([]int{1, 1, 1, 1, 2, 3, 10, 33, 150}).Draw(t, "blocks"))
	e := kvevent.RouterEvent{Owner: o, Tier: tier, Kind: kvevent.Stored} // without blocks
	switch kind := rapid.IntRange(0, 31).Draw(t, "kind"); {
	case kind < 14:
		m.at, e = to, stored(o, tier, prompt, from, to)
	case kind < 26:
		m.at, e = max(0, from-1), removed(o, tier, prompt, from, to)
		if rapid.IntRange(0, 5).Draw(t, "mixed") == 0 {
			e.Removed = rapid.Permutation(append(e.Removed, 12345)).Draw(t, "order")
		}
	case kind == 26:
		e = cleared(o)
	case kind == 27:
		e.Tier = kv.NumTiers
	case kind == 28:
		e.Kind = 77
	case kind == 29: // of another KV group
		e.Group, e.Blocks = 1, []kvevent.StoredBlock{{Hash: kv.AppendSequence(nil, prompt)[from]}}
	case kind == 30:
		e.Group, e.Kind, e.Removed = 1, kvevent.Removed, []kv.SequenceHash{kv.AppendSequence(nil, prompt)[from]}
	}
	return e
}

// apply applies a message to both indexes, which must refuse the same events.
func (m *messages) apply(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "other first") == 0 {
		m.owners[0], m.owners[1] = m.owners[1], m.owners[0]
	}
	events := rapid.SliceOfN(rapid.Custom(m.event), 1, 40).Draw(t, "events")
	for i := range events {
		events[i].ID = uint64(i)
	}
	before := fmt.Sprint(events)
	wantRefused, want := 0, error(nil)
	for i := range events {
		if err := m.one.Apply(&events[i]); err != nil {
			wantRefused, want = wantRefused+1, err
		}
	}
	refused, err := m.all.ApplyAll(events)
	same(t, "refused", refused, wantRefused)
	same(t, "last error", fmt.Sprint(err), fmt.Sprint(want))
	same(t, "the caller's events", fmt.Sprint(events), before)
}

// statsOf returns the part of the stats that does not say how the blocks lie in runs. Whether an unknown parent is
// pending depends on the runs too: a block that nobody holds stays as long as its run.
func statsOf(x *index.Index) index.Stats {
	s := x.Stats()
	s.Runs, s.Parked, s.Bytes, s.Idle, s.Limbo = 0, 0, 0, 0, 0
	s.Spliced, s.Scans, s.ScannedBlocks = 0, 0, 0
	return s
}

func (m *messages) check(t *rapid.T) {
	same(t, "stats", statsOf(m.all), statsOf(m.one))
	for _, o := range m.owners {
		got, want := [5]uint64{m.all.Lost(o)}, [5]uint64{m.one.Lost(o)}
		got[1], got[2] = m.all.Digest(o)
		want[1], want[2] = m.one.Digest(o)
		got[3], got[4] = m.all.GroupDigest(o)
		want[3], want[4] = m.one.GroupDigest(o)
		same(t, "lost pairs and digests of "+o.String(), got, want)
	}
	for _, p := range m.prompts {
		for _, r := range []index.Reading{index.Continuation, index.Union} {
			same(t, "match", match(t, m.all, p, r), match(t, m.one, p, r))
		}
	}
	dump := func(x *index.Index) map[dumped]bool {
		blocks, _ := shownBy(t, func(visit func(e *kvevent.RouterEvent) bool) {
			index.DumpAll(x, func(e *kvevent.RouterEvent) bool { return e.Group != 0 || visit(e) })
		})
		return blocks
	}
	sameDump(t, "dump", dump(m.all), dump(m.one))
}

// TestApplyAllIsApplyOfEach: answers, digests, counters and refusals are those of the events one by one.
func TestApplyAllIsApplyOfEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMessages(t)
		for range rapid.IntRange(1, 12).Draw(t, "messages") {
			m.apply(t)
			m.check(t)
		}
	})
}

// TestRefusedEventsAreStores: only stores of an owner beyond Options.MaxOwners are refused, each of them.
func TestRefusedEventsAreStores(t *testing.T) {
	x := newIndex(t, index.Options{MaxOwners: 1})
	prompt := series(1, 9)
	apply(t, x, stored(kv.PoolOwner(1), kv.TierHost, prompt, 0, 9))
	o := kv.PoolOwner(2)
	refused, err := x.ApplyAll([]kvevent.RouterEvent{
		removed(o, kv.TierHost, prompt, 0, 1), stored(o, kv.TierHost, prompt, 1, 2), removed(o, kv.TierHost, prompt, 5, 6), stored(o, kv.TierHost, prompt, 2, 3),
	})
	if s := x.Stats(); refused != 2 || err == nil || s.Refused != 2 || s.UnknownRemovals != 2 {
		t.Errorf("%d refused: %v; counted %d, and %d unknown removals", refused, err, s.Refused, s.UnknownRemovals)
	}
}

// TestApplyAllRetainsNoEvent: the memory of a message is free after ApplyAll.
func TestApplyAllRetainsNoEvent(t *testing.T) {
	x := newIndex(t, index.Options{})
	o, prompt := kv.PoolOwner(1), series(1, 200)
	apply(t, x, stored(o, kv.TierHost, prompt, 0, 1))
	for _, n := range []int{1, 2} {
		events := slices.Repeat([]kvevent.RouterEvent{stored(o, kv.TierHost, prompt, 1, 200)}, n)
		kept := weak.Make(&events[0].Blocks[0])
		if _, err := x.ApplyAll(events); err != nil {
			t.Fatal(err)
		}
		events = nil
		if runtime.GC(); kept.Value() != nil {
			t.Errorf("the blocks of a message of %d events are kept", n)
		}
	}
	runtime.KeepAlive(x)
}
