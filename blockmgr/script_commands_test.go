package blockmgr

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// do runs one command and returns what there is to say.
func (s *story) do(cmd string, a storyArgs) string {
	for _, commands := range []func(string, storyArgs) (string, bool){s.storing, s.finding, s.handling, s.damaging, s.living} {
		if result, known := commands(cmd, a); known {
			return result
		}
	}
	s.t.Fatalf("no command %q", cmd)
	return ""
}

// storing has the commands with which engines store blocks.
func (s *story) storing(cmd string, a storyArgs) (string, bool) {
	switch cmd {
	case "store", "grant":
		blocks := s.blocks(a.word(0))
		res, err := s.Grant(s.session(a), blocks, a.number("priority"))
		if err != nil {
			return err.Error(), true
		}
		var slots []Slot
		for _, g := range res.Grants {
			s.fresh(g.Slot)
			slots = append(slots, g.Slot)
			s.content[g.Slot] = blocks[g.Index]
		}
		s.remember(a, slots)
		if cmd == "store" {
			err = s.commit(a, slots)
		}
		return withError(fmt.Sprintf("%d granted, %d present, %d refused", len(res.Grants), res.Present, res.Refused), err), true
	case "commit":
		return textOf(s.commit(a, s.slots[a.word(0)])), true
	case "abort":
		return textOf(s.Abort(s.session(a), s.slots[a.word(0)])), true
	case "keep":
		ttl, err := time.ParseDuration(a.word(1))
		if err != nil {
			s.t.Fatal(err)
		}
		n, err := s.Keep(keysOf(s.blocks(a.word(0))), ttl)
		return withError(fmt.Sprintf("%d kept", n), err), true
	case "unkeep":
		keys := keysOf(s.blocks(a.word(0)))
		resident, kept, err := s.Kept(keys)
		if err != nil {
			s.t.Fatal(err)
		}
		n, err := s.Unkeep(keys)
		return withError(fmt.Sprintf("%d of %d resident blocks were kept, %d ended", kept, resident, n), err), true
	case "prompts":
		n, err := strconv.ParseUint(a.word(0), 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		s.prompts[a.options["as"]] = s.storeEach(1000*uint64(1+len(s.prompts)), n, int(cmp.Or(a.number("blocks"), 8)), a.number("priority"))
	case "left":
		last, _ := strconv.Atoi(a.word(1))
		prompts := s.prompts[a.word(0)]
		return fmt.Sprint(s.residents(prompts[len(prompts)-cmp.Or(last, len(prompts)):]...)), true
	case "touch":
		return fmt.Sprint(s.Touch(keysOf(s.blocks(a.word(0))))), true
	default:
		return "", false
	}
	return "", true
}

// commit fills and commits slots.
func (s *story) commit(a storyArgs, slots []Slot) error {
	for _, slot := range slots {
		if block, ok := s.content[slot]; ok {
			s.write(slot, s.testPool.content(&block, 0))
		}
	}
	return s.Commit(s.session(a), slots)
}

// finding has the commands that look blocks up or bring them into host memory.
func (s *story) finding(cmd string, a storyArgs) (string, bool) {
	switch cmd {
	case "find":
		return cmp.Or(sources(s.find(s.blocks(a.word(0)))), "none"), true
	case "hurry":
		ctx, cancel := context.WithCancel(s.t.Context())
		cancel()
		res, err := s.Lookup(ctx, s.sid, s.blocks(a.word(0)))
		if err == nil {
			err = s.Unpin(s.sid, res.Slots)
		}
		return withError(fmt.Sprintf("%q, %d coming", sources(res.Sources), res.Coming), err), true
	case "pin":
		res, err := s.Lookup(s.t.Context(), s.session(a), s.blocks(a.word(0)))
		s.remember(a, res.Slots)
		return withError(cmp.Or(sources(res.Sources), "none"), err), true
	case "unpin":
		return textOf(s.Unpin(s.session(a), s.slots[a.word(0)])), true
	case "show":
		return s.tiersOf(s.blocks(a.word(0))), true
	case "fit":
		blocks := s.blocks(a.word(0))
		limit := cmp.Or(a.number("limit"), uint32(len(blocks))*hybridPage)
		return fmt.Sprintf("%d tokens", s.Fit(blocks, limit, a.number("align"))), true
	case "prefetch":
		return fmt.Sprintf("%d reads", s.Prefetch(s.blocks(a.word(0)))), true
	case "spares":
		return s.countSpares(a.words), true
	case "stats":
		return s.statsOf(a.words), true
	}
	return "", false
}

// countSpares grants as many new blocks as there is room for.
func (s *story) countSpares(held []string) string {
	got := s.fill(uint64(s.ids.Add(1)))
	for _, slot := range got {
		s.fresh(slot)
	}
	for _, name := range held {
		for _, h := range s.slots[name] {
			if slices.ContainsFunc(got, func(g Slot) bool { return same(g, h) }) {
				return fmt.Sprintf("slot %+v of %s was granted", h, name)
			}
		}
	}
	return withError(fmt.Sprintf("%d slots", len(got)), s.Abort(s.sid, got))
}

func (s *story) statsOf(fields []string) string {
	var out []string
	stats := reflect.ValueOf(s.Stats())
	for _, field := range fields {
		v := stats
		field, some := strings.CutSuffix(field, ">0")
		for name := range strings.SplitSeq(field, ".") {
			v = v.FieldByName(name)
		}
		switch {
		case !v.IsValid():
			s.t.Fatalf("no statistic %q", field)
		case some:
			out = append(out, fmt.Sprint(!v.IsZero()))
		default:
			out = append(out, fmt.Sprint(v.Interface()))
		}
	}
	return strings.Join(out, " ")
}

// handling has the commands of programs that embed the manager.
func (s *story) handling(cmd string, a storyArgs) (string, bool) {
	switch cmd {
	case "allocate":
		n, _ := strconv.Atoi(a.word(0))
		made, err := s.Allocate(s.session(a), n)
		var slots []Slot
		for _, b := range made {
			s.fresh(b.Slot())
			slots = append(slots, b.Slot())
			s.handles[a.options["as"]] = append(s.handles[a.options["as"]], b)
		}
		s.remember(a, slots)
		return textOf(err), true
	case "register":
		blocks := s.blocks(a.word(0))
		made := s.allocate(len(blocks))
		s.prepare(made, blocks)
		for _, b := range made {
			b.SetPriority(a.number("priority"))
		}
		handles, err := s.Register(s.sid, made)
		if err != nil {
			release(made)
		}
		if name := a.options["as"]; name == "" {
			release(handles)
		} else {
			for _, h := range handles {
				s.handles[name] = append(s.handles[name], h)
			}
		}
		return textOf(err), true
	case "match":
		return fmt.Sprint(s.matched(s.t, s.blocks(a.word(0)))), true
	case "release":
		release(s.handles[a.word(0)])
		delete(s.handles, a.word(0))
		return "", true
	case "reset":
		if a.word(0) == "all" {
			return textOf(s.ResetAll()), true
		}
		return textOf(s.Reset(storyTier(a.word(0)))), true
	case "reset-blocks":
		res, err := s.ResetBlocks(storyTier(a.word(0)), hashesOf(s.blocks(a.word(1))))
		return withError(fmt.Sprintf("%d reset, %d not found, %d in use", len(res.Reset), len(res.NotFound), len(res.NotReset)), err), true
	case "reset-exclusive":
		alone, err := s.ResetExclusive(s.session(a))
		return withError(fmt.Sprint("alone ", alone), err), true
	case "offers":
		return fmt.Sprint(s.filter.offers.Load()), true
	case "told":
		return fmt.Sprintf("%+v", s.sink.told()), true
	}
	return "", false
}

func hashesOf(blocks []Block) (hashes []kv.SequenceHash) {
	for i := range blocks {
		hashes = append(hashes, blocks[i].Seq)
	}
	return hashes
}

// damaging has the commands that harm memory, disk and records.
func (s *story) damaging(cmd string, a storyArgs) (string, bool) {
	switch cmd {
	case "evict":
		s.evictHost(s.blocks(a.word(0)))
	case "drop":
		s.resetHost(s.blocks(a.word(0)))
	case "flip", "tear", "rewrite", "truncate":
		s.harm(cmd, a)
	case "fault":
		s.times.Store(int64(cmp.Or(a.number("times"), 1<<30)))
		for where, fault := range s.faults {
			if name := a.options[where]; name != "" || a.word(0) == "none" {
				fault.Store(uint32(map[string]storagetest.Fault{
					"EIO": storagetest.FaultEIO, "ENOSPC": storagetest.FaultENOSPC, "short": storagetest.FaultShort, "torn": storagetest.FaultTorn,
					"flip": storagetest.FaultFlip,
				}[name]))
			}
		}
	case "age":
		s.ageing()
	case "trip":
		tripBreaker(s.t, &s.broker.health.All)
	case "leave":
		s.leaveDiskAlone()
	case "retry":
		s.retryDisk()
	default:
		return "", false
	}
	return "", true
}

// harm damages one block, or a slot that was remembered, in host memory or on disk. The
// record of a slot can only be changed between a kill and the next open.
func (s *story) harm(cmd string, a storyArgs) {
	s.t.Helper()
	dir := map[string]string{"host": s.cfg.HostDir, "disk": s.cfg.DiskDir}[a.word(0)]
	switch name := a.word(1); cmd {
	case "tear":
		tearRecord(s.t, dir, s.slots[name][0])
	case "rewrite":
		state := map[string]storage.State{
			"filled": storage.StateFilled, "staging": storage.StateStaging, "receiving": storage.StateReceiving, "evicting": storage.StateEvicting,
		}[a.word(2)]
		rewriteRecord(s.t, dir, s.slots[name][0], func(r *storage.Record) {
			switch r.State = cmp.Or(state, r.State); a.word(2) {
			case "unnamed":
				*r = storage.Record{Namespace: r.Namespace, Generation: r.Generation, State: r.State, Session: r.Session}
			case "foreign":
				r.Namespace++
			case "longer":
				r.Length++
			case "twice":
				r.Key = s.blocks("a")[0].Key
			}
		})
	default:
		where := s.location(a.word(0), s.blocks(name)[0])
		if cmd == "flip" {
			flip(s.t, where.Path, where.Offset+int64(s.BlockBytes())-1)
		} else if err := os.Truncate(where.Path, where.Offset+100); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *story) location(tier string, b Block) Location {
	if tier == "host" {
		return s.hostLocation(b.Key)
	}
	return s.diskLocation(b.Key)
}

// living has the commands of sessions, pools and agents.
func (s *story) living(cmd string, a storyArgs) (string, bool) {
	name := a.word(0)
	switch cmd {
	case "begin":
		s.sessions[name] = s.begin()
	case "end":
		var gone chan struct{}
		if a.word(1) == "dying" {
			gone = make(chan struct{})
			s.exits[name] = gone
		}
		s.EndSession(s.sessions[name], gone)
	case "exit":
		close(s.exits[name])
		synctest.Wait()
	case "renew":
		s.sid = s.begin()
	case "revive":
		return textOf(s.BeginSession(s.sessions[name])), true
	case "retire":
		gone, err := s.Retire()
		if err != nil {
			return err.Error(), true
		}
		<-gone
		delete(s.pools, s.Namespace().Model)
		s.testPool = &testPool{t: s.t, m: s.m, sink: s.sink, clock: s.clock, ids: s.ids}
	case "sleep":
		d, err := time.ParseDuration(name)
		if err != nil {
			s.t.Fatal(err)
		}
		time.Sleep(d)
		synctest.Wait()
	case "namespace":
		s.enter(name)
	case "note":
		slot := s.location(a.word(0), s.blocks(a.word(1))[0]).Slot
		s.slots[a.word(2)] = []Slot{slot}
	case "stale":
		slot := s.slots[name][0]
		slot.Generation--
		s.slots["stale"] = []Slot{slot}
	case "close":
		s.end()
	case "kill":
		s.m.Abandon()
		s.testPool = nil
	case "open":
		for key, value := range a.options {
			s.configure(key, value)
		}
		if s.open(); name != "node" {
			s.enter("test")
		}
	case "forget":
		s.m.Forget(s.sessions[name])
	case "resume":
		granted, pinned, err := s.Resume(s.session(a), s.sessions[name], s.named(a.options["granted"]), s.named(a.options["pinned"]))
		return withError(fmt.Sprintf("%d granted, %d pinned", len(granted), len(pinned)), err), true
	default:
		return "", false
	}
	return "", true
}

// residents counts the blocks that are in host memory, and uses none of them.
func (p *testPool) residents(chains ...[]Block) (n int) {
	there := map[kv.StoredKey]bool{}
	for _, info := range p.Dump() {
		there[info.Block.Key] = info.Tiers.Has(kv.TierHost)
	}
	for _, blocks := range chains {
		for i := range blocks {
			if there[blocks[i].Key] {
				n++
			}
		}
	}
	return n
}

// storeEach stores prompts of so many blocks and returns them.
func (p *testPool) storeEach(first, prompts uint64, length int, priority uint32) (stored [][]Block) {
	for seed := range prompts {
		blocks := chain(first+seed, length)
		p.storeAt(blocks, priority)
		p.quiesce()
		stored = append(stored, blocks)
	}
	return stored
}
