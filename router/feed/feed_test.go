package feed

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/source"
)

// blockSet is the residency of one owner in one tier.
type blockSet struct {
	held map[kv.SequenceHash]bool
	full bool
	lost uint64
}

func (s *blockSet) Apply(e *kvevent.RouterEvent) error {
	switch e.Kind {
	case kvevent.Cleared:
		clear(s.held)
	case kvevent.Stored:
		if s.full {
			return index.ErrFull
		}
		for _, b := range e.Blocks {
			s.held[b.Hash] = true
		}
	case kvevent.Removed:
		for _, h := range e.Removed {
			delete(s.held, h)
		}
	}
	return nil
}

func (s *blockSet) Replace(_ kv.Owner, events []kvevent.RouterEvent) error {
	if s.full {
		return index.ErrFull
	}
	clear(s.held)
	for i := range events {
		if err := s.Apply(&events[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *blockSet) Digest(kv.Owner) (sum, pairs uint64) {
	for h := range s.held {
		sum += kv.Digest(h, kv.TierDevice)
		pairs++
	}
	return sum, pairs
}

func (s *blockSet) ApplyAll(events []kvevent.RouterEvent) (refused int, err error) {
	for i := range events {
		if failed := s.Apply(&events[i]); failed != nil {
			refused, err = refused+1, failed
		}
	}
	return refused, err
}

func (s *blockSet) GroupDigest(kv.Owner) (sum, pairs uint64) { return 0, 0 }

func (s *blockSet) Lost(kv.Owner) uint64 { return s.lost }

func (s *blockSet) HasRoom(uint64) bool { return !s.full }

var scriptOwner = kv.WorkerOwner(kv.Worker{ID: 1})

// TestFeedScripts runs the stories in testdata/feed. Event 7 stores block 7,
// 7-3 is event 7 that removes block 3, 7c is event 7 that clears. Commands:
//
//	announce last=N holds=1,2,3|none [degraded]
//	events 1 2 5-2 6c [foreign]
//	wait 500ms
//	ask                            sends the query that is due
//	answer N events=1,2 last=2     answers query N
//	answer N dump=1,2,3 last=9
//	answer N error|too_new|timeout
//	answer N dump=1,2 id=5 chunks=(0,2) last=9 [cut]
//	                               chunks 0 and 1 of dump 5
//	full on|off                    the index has no room
//	lost 3                         the index does not keep so many pairs
//
// Each shows the cursor, the blocks, and what the feed is doing.
func TestFeedScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/feed", func(t *testing.T, path string) {
		blocks := &blockSet{held: make(map[kv.SequenceHash]bool)}
		s := &feedScript{t: t, blocks: blocks, now: time.Unix(1000, 0), feed: &feed{
			announcement: kvevent.Announcement{Owner: scriptOwner}, index: blocks}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.run(d)
		})
	})
}

type feedScript struct {
	t      *testing.T
	feed   *feed
	blocks *blockSet
	now    time.Time
}

func (s *feedScript) run(d *datadriven.TestData) string {
	out := ""
	switch d.Cmd {
	case "announce":
		s.announce(d)
	case "events":
		for _, arg := range d.CmdArgs {
			if arg.Key == "foreign" {
				continue
			}
			e := s.event(arg.Key)
			if d.HasArg("foreign") {
				e.Owner = kv.PoolOwner(1)
			}
			s.feed.handleEvents([]kvevent.RouterEvent{e}, s.now)
			// The event was borrowed: what becomes of it must not matter.
			clear(e.Blocks)
			clear(e.Removed)
		}
	case "wait":
		pause, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.now.Add(pause)
	case "ask":
		out = s.ask()
	case "answer":
		if err := s.answer(d); err != nil {
			out = err.Error() + "\n"
		}
	case "full":
		s.blocks.full = d.HasArg("on")
	case "lost":
		s.blocks.lost = s.number(d.CmdArgs[0].Key)
	case "counters":
		return fmt.Sprintf("%+v\n", s.feed.counters)
	default:
		s.t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	return out + s.status()
}

func (s *feedScript) status() string {
	f := s.feed
	var names []string
	for _, h := range slices.Sorted(maps.Keys(s.blocks.held)) {
		names = append(names, fmt.Sprint(uint64(h)))
	}
	doing := "waits for its first announcement"
	switch {
	case f.exact():
		doing = "exact"
	case f.recovering:
		doing = fmt.Sprintf("recovers, %d events wait", len(f.parkedEvents))
		if f.inFlight != 0 {
			doing += fmt.Sprintf(", query %d in flight", f.inFlight)
		}
	case f.diverged:
		doing = "differs"
	case f.lostPairs > 0:
		doing = fmt.Sprintf("%d lost", f.lostPairs)
	case f.everComplete:
		doing = "publisher degraded"
	}
	return fmt.Sprintf("cursor %d, blocks [%s], %s\n", f.cursor, strings.Join(names, " "), doing)
}

func (s *feedScript) announce(d *datadriven.TestData) {
	a := kvevent.Announcement{Owner: scriptOwner, Health: kvevent.HealthExact}
	d.ScanArgs(s.t, "last", &a.LastEventID)
	if arg, ok := d.Arg("holds"); ok && arg.Vals[0] != "none" {
		for v := range strings.SplitSeq(arg.Vals[0], ",") {
			a.Digest += kv.Digest(kv.SequenceHash(s.number(v)), kv.TierDevice)
			a.Blocks++
		}
	}
	if d.HasArg("degraded") {
		a.Health = kvevent.HealthDegraded
	}
	s.feed.handleAnnouncement(&a, s.now)
}

func (s *feedScript) number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *feedScript) event(text string) kvevent.RouterEvent {
	e := kvevent.RouterEvent{Owner: scriptOwner, Kind: kvevent.Stored}
	if id, ok := strings.CutSuffix(text, "c"); ok {
		e.ID, e.Kind = s.number(id), kvevent.Cleared
		return e
	}
	id, removed, ok := strings.Cut(text, "-")
	e.ID = s.number(id)
	if ok {
		e.Kind, e.Removed = kvevent.Removed, []kv.SequenceHash{kv.SequenceHash(s.number(removed))}
		return e
	}
	e.Blocks = []kvevent.StoredBlock{{Hash: kv.SequenceHash(e.ID), Local: kv.LocalHash(e.ID)}}
	return e
}

func (s *feedScript) ask() string {
	q, number, due := s.feed.nextQuery(s.now)
	switch {
	case !due:
		return "nothing to ask now\n"
	case q.DumpID != 0:
		return fmt.Sprintf("query %d: dump %d from chunk %d on\n", number, q.DumpID, q.FirstChunk)
	case q.HasStart:
		return fmt.Sprintf("query %d: events from %d on\n", number, q.StartID)
	}
	return fmt.Sprintf("query %d: everything\n", number)
}

func (s *feedScript) answer(d *datadriven.TestData) error {
	number := s.number(d.CmdArgs[0].Key)
	a := &source.Answer{Kind: kvevent.QueryEvents}
	d.MaybeScanArgs(s.t, "last", &a.LastEventID)
	if d.HasArg("timeout") {
		return s.feed.handleAnswer(number, nil, errors.New("timeout"), s.now)
	}
	for _, kind := range []kvevent.QueryKind{kvevent.QueryError, kvevent.QueryTooNew} {
		if d.HasArg(string(kind)) {
			a.Kind, a.Message = kind, "no"
		}
	}
	if arg, ok := d.Arg("dump"); ok {
		a.Kind = kvevent.QueryTreeDump
		for i, v := range strings.Split(arg.Vals[0], ",") {
			e := s.event(v)
			e.ID = uint64(i)
			a.Events = append(a.Events, e)
		}
	}
	d.MaybeScanArgs(s.t, "id", &a.DumpID)
	d.MaybeScanArgs(s.t, "chunks", &a.FirstChunk, &a.NextChunk)
	if d.HasArg("cut") {
		return s.feed.handleAnswer(number, a, errors.New("cut"), s.now)
	}
	if arg, ok := d.Arg("events"); ok {
		for v := range strings.SplitSeq(arg.Vals[0], ",") {
			a.Events = append(a.Events, s.event(v))
		}
	}
	return s.feed.handleAnswer(number, a, nil, s.now)
}

// TestWaitingEventsAreBounded: a publisher that never answers cannot fill the
// memory, and what was not kept is asked for afterwards.
func TestWaitingEventsAreBounded(t *testing.T) {
	blocks := &blockSet{held: make(map[kv.SequenceHash]bool)}
	f := &feed{announcement: kvevent.Announcement{Owner: scriptOwner}, index: blocks}
	now := time.Unix(0, 0)
	f.handleAnnouncement(&kvevent.Announcement{Owner: scriptOwner, LastEventID: 1, Health: kvevent.HealthExact}, now)
	_, number, _ := f.nextQuery(now)
	const n = maxWaitingEvents + 100
	for id := uint64(2); id <= n; id++ {
		f.handleEvents([]kvevent.RouterEvent{{Owner: scriptOwner, ID: id, Kind: kvevent.Removed}}, now)
	}
	if len(f.parkedEvents) != maxWaitingEvents || f.counters.Overflowed != n-1-maxWaitingEvents {
		t.Errorf("%d events wait and %d overflowed, want %d and %d",
			len(f.parkedEvents), f.counters.Overflowed, maxWaitingEvents, n-1-maxWaitingEvents)
	}
	if err := f.handleAnswer(number, &source.Answer{Kind: kvevent.QueryTreeDump, LastEventID: 1}, nil, now); err != nil {
		t.Fatal(err)
	}
	if f.recovering || f.cursor != maxWaitingEvents+1 {
		t.Errorf("cursor %d, recovering %v; want %d without holes", f.cursor, f.recovering, maxWaitingEvents+1)
	}
	f.handleEvents([]kvevent.RouterEvent{{Owner: scriptOwner, ID: n + 1, Kind: kvevent.Removed}}, now)
	if q, _, due := f.nextQuery(now); !due || q.StartID != maxWaitingEvents+2 {
		t.Errorf("next query %+v (due: %v), want what did not fit", q, due)
	}
	big := kvevent.RouterEvent{Owner: scriptOwner, ID: n + 2, Kind: kvevent.Removed,
		Removed: make([]kv.SequenceHash, maxWaitingBlocks+1)}
	if f.handleEvents([]kvevent.RouterEvent{big}, now); len(f.parkedEvents) != 1 {
		t.Errorf("%d events wait, want none beyond %d blocks", len(f.parkedEvents), maxWaitingBlocks)
	}
}
