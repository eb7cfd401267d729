package dynamo

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// asRecoverable makes the sources of a plane answer queries that the test asks
// without a network.
func asRecoverable(p *Plane) { p.recovery = &recovery{sources: make(map[string]*Source)} }

// closeBubble ends a plane inside of a bubble, whose goroutines must end with it.
func closeBubble(t *testing.T, p *Plane) {
	t.Helper()
	p.recovery = nil
	closePlane(t, p)
}

// openBubble opens a plane with or without recovery.
func openBubble(t *testing.T, c *fakeConn, recoverable bool) *Plane {
	t.Helper()
	p, err := Open(t.Context(), testOptions(t), c)
	if err != nil {
		t.Fatal(err)
	}
	if recoverable {
		asRecoverable(p)
	}
	return p
}

func TestEventsAreNumberedFromOneWhateverTheStreamCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, f := &fakeConn{}, newFakeStream()
		f.store(kv.TierDevice, 1, 2)
		f.store(kv.TierHost, 3)
		p := openBubble(t, conn, true)
		defer closeBubble(t, p)
		s := addSource(t, p, f)
		f.store(kv.TierDevice, 4)
		f.remove(kv.TierHost, 3)
		f.clear()
		synctest.Wait()
		got := envelopes(t, conn.take())
		if len(got) == 0 {
			t.Fatal("nothing was sent")
		}
		var events []kvevent.RouterEvent
		for i, e := range got {
			if e.PublisherID != s.id || e.Sequence != uint64(i) || e.PublisherID >= 1<<53 {
				t.Errorf("envelope %d of %d", e.Sequence, e.PublisherID)
			}
			events = append(events, e.Events...)
		}
		if len(events) != 3 {
			t.Fatalf("%d events", len(events))
		}
		for i, kind := range []kvevent.Kind{kvevent.Stored, kvevent.Removed, kvevent.Cleared} {
			if e := events[i]; e.ID != uint64(i)+1 || e.Kind != kind || e.Owner != kv.WorkerOwner(testWorker) {
				t.Errorf("event %d: %+v", i, e)
			}
		}
	})
}

func TestAnEmptyEventTellsThatTheLastOneWasTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, f := &fakeConn{}, newFakeStream()
		p := openBubble(t, conn, true)
		defer closeBubble(t, p)
		s := addSource(t, p, f)
		f.store(kv.TierDevice, 1)
		synctest.Wait()
		if got := envelopes(t, conn.take()); len(got) != 1 {
			t.Fatalf("%d messages", len(got))
		}
		time.Sleep(firstProbe + tickEvery)
		synctest.Wait()
		got := envelopes(t, conn.take())
		if len(got) != 1 || len(got[0].Events) != 1 || got[0].Events[0].ID != 2 || got[0].Events[0].NumBlocks() != 0 {
			t.Fatalf("no empty event: %+v", got)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		// At 3, 7, 15, 31 and 63 s, and then once a minute.
		if got := conn.take(); len(got) != 63 || s.Stats().Probes != 64 {
			t.Errorf("%d messages of an idle source in an hour, %d probes", len(got), s.Stats().Probes)
		}
	})
}

func TestALiveOnlySourceSaysEverythingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, f := &fakeConn{}, newFakeStream()
		f.store(kv.TierDevice, 1, 2, 3)
		p := openBubble(t, conn, false)
		defer closeBubble(t, p)
		s := addSource(t, p, f)
		first := newRouterModel(s)
		var late *routerModel
		for range 8 {
			time.Sleep(20 * time.Second)
			synctest.Wait()
			for _, e := range envelopes(t, conn.take()) {
				for _, r := range []*routerModel{first, late} {
					if r != nil {
						if err := r.events(e.Events); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			if err := first.agrees(f); err != nil {
				t.Fatal(err)
			}
			if late == nil {
				late = newRouterModel(s)
			}
		}
		if err := late.agrees(f); err != nil {
			t.Errorf("late router: %v", err)
		}
		if first.resets > 0 {
			t.Errorf("saying it again emptied a router %d times", first.resets)
		}
		// 1, 3, 7, 15, 31, 63, 123 s and the repair with which it began.
		if got := s.Stats(); got.Refreshes != 7 || got.Repairs != 1 {
			t.Errorf("%+v in 160 s", got)
		}
	})
}

// TestWhatTheConnectionLostIsSaidAgain: the inbox overflows while the server is
// away, and messages are refused.
func TestWhatTheConnectionLostIsSaidAgain(t *testing.T) {
	for _, recoverable := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			conn, f := &fakeConn{}, newFakeStream()
			p := openBubble(t, conn, recoverable)
			defer closeBubble(t, p)
			s := addSource(t, p, f)
			r := newRouterModel(s)
			settle := func() {
				t.Helper()
				for range 4 {
					time.Sleep(time.Second)
					synctest.Wait()
					for _, e := range envelopes(t, conn.take()) {
						if err := r.events(e.Events); err != nil {
							t.Fatal(err)
						}
					}
					if _, err := r.ask(); err != nil {
						t.Fatal(err)
					}
				}
				if err := r.agrees(f); err != nil {
					t.Fatal(err)
				}
			}
			f.store(kv.TierDevice, 1, 2)
			settle()
			conn.set(true, false)
			for i := range inboxEvents + 10 {
				f.store(kv.TierHost, kv.SequenceHash(100+i%50))
			}
			f.remove(kv.TierDevice, 2)
			time.Sleep(time.Second)
			synctest.Wait()
			if got := s.Stats(); got.Dropped != inboxEvents || got.Waiting != 11 {
				t.Errorf("dropped %d, waiting %d", got.Dropped, got.Waiting)
			}
			conn.set(false, false)
			settle()
			conn.set(false, true)
			f.store(kv.TierDevice, 5)
			time.Sleep(time.Minute)
			synctest.Wait()
			conn.set(false, false)
			time.Sleep(lastRetry)
			settle()
			if got := s.Stats(); got.PublishErrors < 2 || got.PublishErrors > 20 || got.Unsent == 0 {
				t.Errorf("%d publish errors, %d unsent in a minute", got.PublishErrors, got.Unsent)
			}
		})
	}
}

func TestMessagesKeepTheirBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, f := &fakeConn{payload: 64 << 10}, newFakeStream()
		p := openBubble(t, conn, true)
		defer closeBubble(t, p)
		s := addSource(t, p, f)
		hashes := make([]kv.SequenceHash, 3000)
		for i := range hashes {
			hashes[i] = kv.SequenceHash(i) + 1<<40
		}
		f.store(kv.TierDevice, hashes...)
		for i := range 300 {
			f.store(kv.TierHost, hashes[i])
		}
		f.remove(kv.TierDevice, hashes...)
		synctest.Wait()
		r := newRouterModel(s)
		r.recovering = false
		for _, m := range conn.take() {
			if len(m.data) > 64<<10 {
				t.Errorf("a message of %d bytes", len(m.data))
			}
			for _, e := range envelopes(t, []sentMessage{m}) {
				if len(e.Events) > kvevent.MaxEventsPerMessage {
					t.Errorf("%d events in a message", len(e.Events))
				}
				for _, ev := range e.Events {
					if ev.NumBlocks() > maxEventBlocks || ev.Kind == kvevent.Stored && ev.HasParent != (ev.Blocks[0].Hash != hashes[0] && ev.Tier == kv.TierDevice) {
						t.Errorf("event %d of %d blocks, parent %t", ev.ID, ev.NumBlocks(), ev.HasParent)
					}
				}
				if err := r.events(e.Events); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := r.agrees(f); err != nil {
			t.Error(err)
		}
	})
}

func TestASourceWhoseRecordWasDeletedBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, f := &fakeConn{}, newFakeStream()
		p := openBubble(t, conn, false)
		defer closeBubble(t, p)
		s := addSource(t, p, f)
		f.store(kv.TierDevice, 1)
		synctest.Wait()
		before := s.Stats().Repairs
		if err := os.Remove(s.record); err != nil {
			t.Fatal(err)
		}
		time.Sleep(touchEvery + tickEvery)
		synctest.Wait()
		if _, err := os.Stat(s.record); err != nil {
			t.Error(err)
		}
		if s.Stats().Repairs != before+1 || p.Stats().RecordsRestored != 1 {
			t.Errorf("repairs %d, was %d", s.Stats().Repairs, before)
		}
	})
}

func TestSourcesAreCheckedWhenTheyAreMade(t *testing.T) {
	p := openPlane(t, testOptions(t), &fakeConn{})
	f := newFakeStream()
	if _, err := p.NewSource(kv.Worker{ID: 5}, f); err == nil || !strings.Contains(err.Error(), "worker 5/0") {
		t.Errorf("another's stream: %v", err)
	}
	s := addSource(t, p, f)
	if _, err := p.NewSource(testWorker, f); err == nil {
		t.Error("two sources of one rank")
	}
	s.Close()
	s.Close()
	f.store(kv.TierDevice, 1)
	if s.Stats().AfterClose != 1 {
		t.Errorf("%+v", s.Stats())
	}
	addSource(t, p, f)
	closePlane(t, p)
	closePlane(t, p)
	if _, err := p.NewSource(testWorker, f); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
