package dynamo

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func TestADumpThatIsTooLargeIsPublishedInstead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, f := &fakeConn{}, newFakeStream()
		p := openBubble(t, conn, true)
		defer closeBubble(t, p)
		p.maxItem = 1000
		s := addSource(t, p, f)
		for i := range 100 {
			f.store(kv.TierDisk, kv.SequenceHash(i))
		}
		synctest.Wait()
		conn.take()
		r := newRouterModel(s)
		for range 3 {
			if _, err := r.ask(); err != nil {
				t.Fatal(err)
			}
		}
		if !r.recovering || s.Stats().LargeDumps != 3 {
			t.Fatalf("recovering %t, %+v", r.recovering, s.Stats())
		}
		synctest.Wait()
		for _, e := range envelopes(t, conn.take()) {
			if err := r.events(e.Events); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.agrees(f); err != nil || r.recovering {
			t.Errorf("recovering %t, %v", r.recovering, err)
		}
		if got := s.Stats().Repairs; got != 1 {
			t.Errorf("everything was published %d times", got)
		}
	})
}

// TestADumpNamesTheLastEventInIt: what waited for a connection has its id when a
// dump holds it, and is not sent a second time.
func TestADumpNamesTheLastEventInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, f := &fakeConn{}, newFakeStream()
		p := openBubble(t, conn, true)
		defer closeBubble(t, p)
		s := addSource(t, p, f)
		conn.set(true, false)
		f.store(kv.TierDevice, 1)
		f.store(kv.TierDevice, 2)
		synctest.Wait()
		if events, last := s.dump(); len(events) != 2 || last != 2 {
			t.Errorf("%d events up to %d", len(events), last)
		}
		f.store(kv.TierDevice, 3)
		conn.set(false, false)
		time.Sleep(tickEvery)
		synctest.Wait()
		got := envelopes(t, conn.take())
		if len(got) != 2 || got[0].Events[0].Kind != kvevent.Cleared || got[0].Events[0].ID != 3 || len(got[1].Events) != 3 {
			t.Errorf("%+v", got)
		}
	})
}

func TestQueriesGetWhatTheyAskFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, f := &fakeConn{}, newFakeStream()
		p := openBubble(t, conn, true)
		defer closeBubble(t, p)
		s := addSource(t, p, f)
		ask := func(q kvevent.DynamoQuery) *kvevent.QueryReply {
			t.Helper()
			item, err := kvevent.DecodeDynamoItem(s.answer(&q))
			if err != nil {
				t.Fatal(err)
			}
			return item.Reply
		}
		from := func(start, end uint64) kvevent.DynamoQuery {
			return kvevent.DynamoQuery{
				Worker: testWorker, Kind: kvevent.DynamoRecovery,
				QueryRequest: kvevent.QueryRequest{StartID: start, HasStart: true, EndID: end, HasEnd: end > 0},
			}
		}
		if r := ask(from(1, 0)); r.Kind != kvevent.QueryTreeDump || r.LastEventID != 0 || len(r.Events) != 0 {
			t.Errorf("before the first event: %+v", r)
		}
		for i := range sentEvents + 100 {
			f.store(kv.TierDevice, kv.SequenceHash(i))
		}
		synctest.Wait()
		const last = sentEvents + 100
		other := from(1, 0)
		other.Worker.Rank++
		status := from(1, 0)
		status.Kind = "status"
		everything := from(0, 0)
		everything.HasStart = false
		for name, tc := range map[string]struct {
			q      kvevent.DynamoQuery
			kind   kvevent.QueryKind
			events int
			last   uint64
		}{
			"the oldest that is kept":   {from(101, 0), kvevent.QueryEvents, sentEvents, last},
			"one before that":           {from(100, 0), kvevent.QueryTreeDump, last, last},
			"the last, to an end":       {from(last, last), kvevent.QueryEvents, 1, last},
			"one that has not happened": {from(last+1, 0), kvevent.QueryTooNew, 0, last},
			"an end before its start":   {from(9, 8), kvevent.QueryInvalidRange, 0, 0},
			"everything":                {everything, kvevent.QueryTreeDump, last, last},
			"another rank":              {other, kvevent.QueryError, 0, 0},
			"something else altogether": {status, kvevent.QueryError, 0, 0},
		} {
			r := ask(tc.q)
			if r.Kind != tc.kind || len(r.Events) != tc.events || r.LastEventID != tc.last {
				t.Errorf("%s: %s with %d events up to %d", name, r.Kind, len(r.Events), r.LastEventID)
			}
		}
		f.clear()
		f.store(kv.TierDevice, 7)
		synctest.Wait()
		r := ask(from(last-5, 0))
		if !slices.EqualFunc(r.Events, []uint64{last + 1, last + 2}, func(e kvevent.RouterEvent, id uint64) bool { return e.ID == id }) {
			t.Errorf("an answer across a cleared event: %+v", r)
		}
	})
}
