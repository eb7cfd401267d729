package index_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// TestScripts runs the stories in testdata/scripts. Blocks are written as their
// LocalHashes. Commands:
//
//	member w1 [pool=N] [gone]               SetMember
//	store w1|p5 [tier=T] [after=1,2] 3,4    blocks 3 and 4 with the prefix 1,2
//	remove w1|p5 [tier=T] [after=1,2] 3,4
//	clear w1|p5                             a cleared event
//	drop w1|p5                              RemoveOwner
//	replace w1|p5                           lines: [T] [after=...] blocks
//	match [union] 1,2,3                     the workers that have a hit
//	dump                                    one event a line
//	stats                                   what is held and what was counted
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		x := newIndex(t, index.Options{})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return (&story{t: t, x: x}).run(d)
		})
	})
}

type story struct {
	t *testing.T
	x *index.Index
}

func (s *story) run(d *datadriven.TestData) string {
	switch d.Cmd {
	case "member":
		s.member(d)
		return ""
	case "store", "remove":
		after, tier := s.options(d)
		e := storedEvent(s.owner(d), tier, after, s.blocks(d.CmdArgs[len(d.CmdArgs)-1].Key))
		if d.Cmd == "remove" {
			e = removal(e)
		}
		return errorText(s.x.Apply(&e))
	case "clear":
		return errorText(s.x.Apply(&kvevent.RouterEvent{Owner: s.owner(d), Kind: kvevent.Cleared}))
	case "drop":
		s.x.RemoveOwner(s.owner(d))
		return ""
	case "replace":
		return errorText(s.x.Replace(s.owner(d), s.events(d)))
	case "match":
		return s.match(d)
	case "dump":
		return s.dump()
	case "stats":
		c := s.x.Stats()
		return fmt.Sprintf("memberships %d, blocks %d, owners %d, workers %d, parked %d; duplicates %d, unknown removals %d, spliced %d\n",
			c.Memberships, c.Blocks, c.Owners, c.Workers, c.Parked, c.DuplicateStores, c.UnknownRemovals, c.Spliced)
	}
	s.t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

func errorText(err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	return ""
}

func (s *story) member(d *datadriven.TestData) {
	var pool uint64
	d.MaybeScanArgs(s.t, "pool", &pool)
	if err := s.x.SetMember(s.owner(d).Worker(), pool, !d.HasArg("gone")); err != nil {
		s.t.Fatalf("%s: %v", d.Pos, err)
	}
}

func (s *story) owner(d *datadriven.TestData) kv.Owner { return s.parseOwner(d.CmdArgs[0].Key) }

func (s *story) parseOwner(name string) kv.Owner {
	id, rank, _ := strings.Cut(name[1:], "/")
	n := s.number(id)
	if name[0] == 'p' {
		return kv.PoolOwner(n)
	}
	w := kv.Worker{ID: kv.WorkerID(n)}
	if rank != "" {
		w.Rank = kv.DPRank(s.number(rank))
	}
	return kv.WorkerOwner(w)
}

func (s *story) number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		s.t.Fatalf("number %q: %v", text, err)
	}
	return n
}

// blocks reads "1,2" and ranges such as "1-9".
func (s *story) blocks(text string) []kv.LocalHash {
	var out []kv.LocalHash
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		first := s.number(from)
		last := first
		if ranged {
			last = s.number(to)
		}
		for n := first; n <= last; n++ {
			out = append(out, kv.LocalHash(n))
		}
	}
	return out
}

func (s *story) options(d *datadriven.TestData) (after []kv.LocalHash, tier kv.Tier) {
	var name string
	if d.MaybeScanArgs(s.t, "tier", &name); name != "" {
		tier = s.tier(name)
	}
	if arg, ok := d.Arg("after"); ok {
		after = s.blocks(strings.Join(arg.Vals, ","))
	}
	return after, tier
}

func (s *story) tier(name string) kv.Tier {
	if name == "host" {
		return kv.TierHost
	}
	tier, err := kv.ParseTier(name)
	if err != nil {
		s.t.Fatal(err)
	}
	return tier
}

func (s *story) events(d *datadriven.TestData) []kvevent.RouterEvent {
	var events []kvevent.RouterEvent
	for line := range strings.Lines(d.Input) {
		var tier kv.Tier
		var after, blocks []kv.LocalHash
		for _, word := range strings.Fields(line) {
			if prefix, ok := strings.CutPrefix(word, "after="); ok {
				after = s.blocks(prefix)
			} else if word[0] >= '0' && word[0] <= '9' {
				blocks = s.blocks(word)
			} else {
				tier = s.tier(word)
			}
		}
		events = append(events, storedEvent(s.owner(d), tier, after, blocks))
	}
	return events
}

func (s *story) match(d *datadriven.TestData) string {
	reading := index.Continuation
	var locals []kv.LocalHash
	for _, arg := range d.CmdArgs {
		if arg.Key == "union" {
			reading = index.Union
		} else {
			locals = s.blocks(arg.Key)
		}
	}
	var m index.Matches
	s.x.Match(&m, locals, reading)
	var b strings.Builder
	for _, h := range m.Hits {
		fmt.Fprintf(&b, "%s: %s\n", m.Members.List[h.Member].Worker, hitsText(h.Hits))
	}
	if b.Len() == 0 {
		return "nobody\n"
	}
	return b.String()
}

func hitsText(h index.Hits) string {
	var parts []string
	for _, t := range kv.Tiers {
		if h[t] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", t, h[t]))
		}
	}
	return strings.Join(parts, ", ")
}

func (s *story) dump() string {
	var b strings.Builder
	index.DumpAll(s.x, func(e *kvevent.RouterEvent) bool {
		fmt.Fprintf(&b, "%s %s:", e.Owner, e.Tier)
		if e.HasParent {
			fmt.Fprintf(&b, " after %016x:", uint64(e.Parent))
		}
		for _, block := range e.Blocks {
			fmt.Fprintf(&b, " %d", block.Local)
		}
		b.WriteByte('\n')
		return true
	})
	if b.Len() == 0 {
		return "empty\n"
	}
	return b.String()
}

// storedEvent stores blocks, whose prefix is after.
func storedEvent(o kv.Owner, t kv.Tier, after, blocks []kv.LocalHash) kvevent.RouterEvent {
	seq := kv.AppendSequence(nil, slices.Concat(after, blocks))
	e := kvevent.RouterEvent{Owner: o, Tier: t, Kind: kvevent.Stored}
	if n := len(after); n > 0 {
		e.Parent, e.HasParent = seq[n-1], true
	}
	for i, l := range blocks {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: seq[len(after)+i], Local: l})
	}
	return e
}

// removal removes what e stores.
func removal(e kvevent.RouterEvent) kvevent.RouterEvent {
	r := kvevent.RouterEvent{Owner: e.Owner, Tier: e.Tier, Kind: kvevent.Removed}
	for _, b := range e.Blocks {
		r.Removed = append(r.Removed, b.Hash)
	}
	return r
}
