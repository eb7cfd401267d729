package dynamo

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// step is one thing that happens in a run of the model.
type step struct {
	what   string
	tier   kv.Tier
	first  int
	n      int
	router int
}

func drawStep(t *rapid.T) step {
	return step{
		what: rapid.SampledFrom([]string{
			"store", "store", "store", "remove", "remove", "group", "ungroup", "clear", "burst", "away", "back", "refuse",
			"lose", "lose", "join", "ask", "ask", "deliver", "deliver", "wait", "wait", "deleted",
		}).Draw(t, "what"),
		tier:   rapid.SampledFrom([]kv.Tier{kv.TierDevice, kv.TierHost, kv.TierDisk}).Draw(t, "tier"),
		first:  rapid.IntRange(1, 12).Draw(t, "first"),
		n:      rapid.IntRange(1, 5).Draw(t, "n"),
		router: rapid.IntRange(0, 3).Draw(t, "router"),
	}
}

// run is one run of the model: a source, and routers that each lose messages of
// their own.
type run struct {
	stream  *fakeStream
	conn    *fakeConn
	source  *Source
	routers []*routerModel
	lose    map[*routerModel]int // how many messages it will not get
}

// calm says that nothing happens to the connection and the stream but lost messages.
func (s *step) calm() bool {
	return !slices.Contains([]string{"clear", "burst", "away", "refuse", "deleted"}, s.what)
}

func (r *run) do(s step) error {
	hashes := make([]kv.SequenceHash, s.n)
	for i := range hashes {
		hashes[i] = kv.SequenceHash(s.first + i)
	}
	switch s.what {
	case "store":
		r.stream.store(s.tier, hashes...)
	case "remove":
		r.stream.remove(s.tier, hashes...)
	case "group": // routers must hear nothing of it
		e := kvevent.RouterEvent{Kind: kvevent.Stored, Tier: s.tier, Group: 1}
		for _, h := range hashes {
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h})
		}
		r.stream.apply(e)
	case "ungroup":
		r.stream.apply(kvevent.RouterEvent{Kind: kvevent.Removed, Tier: s.tier, Group: 1, Removed: hashes})
	case "clear":
		r.stream.clear()
	case "burst":
		for i := range 1000 * s.n {
			r.stream.store(s.tier, hashes[i%s.n])
			r.stream.remove(s.tier, hashes[i%s.n])
		}
	case "away":
		r.conn.set(true, false)
	case "back":
		r.conn.set(false, false)
	case "refuse":
		r.conn.set(false, true)
	case "lose":
		if router := r.router(s); router != nil {
			r.lose[router] += s.n
		}
	case "join":
		if len(r.routers) < 4 {
			r.routers = append(r.routers, newRouterModel(r.source))
		}
	case "ask":
		if router := r.router(s); router != nil {
			_, err := router.ask()
			return err
		}
	case "deliver":
		synctest.Wait()
		return r.deliver()
	case "wait":
		time.Sleep(time.Duration(s.n) * 300 * time.Millisecond)
	case "deleted":
		return r.forgotten()
	}
	return nil
}

func (r *run) router(s step) *routerModel {
	if len(r.routers) == 0 {
		return nil
	}
	return r.routers[s.router%len(r.routers)]
}

// forgotten is what happens when the record was deleted and is back: every router
// has dropped the source, found it again, and begins anew.
func (r *run) forgotten() error {
	if err := r.deliver(); err != nil {
		return err
	}
	for i, old := range r.routers {
		r.routers[i] = newRouterModel(r.source)
		r.lose[r.routers[i]] = r.lose[old]
	}
	r.source.recordDeleted()
	return nil
}

// deliver hands what was sent to every router.
func (r *run) deliver() error {
	for _, m := range r.conn.take() {
		e, err := decodeEnvelope(m.data)
		if err != nil {
			return err
		}
		for _, router := range r.routers {
			if r.lose[router] > 0 {
				r.lose[router]--
				continue
			}
			if err := router.events(e.Events); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle lets everything be repaired: nothing is lost any more, and every query is
// answered.
func (r *run) settle() error {
	r.conn.set(false, false)
	clear(r.lose)
	r.routers = append(r.routers, newRouterModel(r.source))
	for range 40 {
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if err := r.deliver(); err != nil {
			return err
		}
		for _, router := range r.routers {
			if _, err := router.ask(); err != nil {
				return err
			}
		}
	}
	for i, router := range r.routers {
		if err := router.agrees(r.stream); err != nil {
			return fmt.Errorf("router %d: %w", i, err)
		}
	}
	return nil
}

// TestEveryRouterEndsWithWhatTheStreamHolds plays random changes, outages, losses
// and late routers, and lets routers follow by their own rules.
func TestEveryRouterEndsWithWhatTheStreamHolds(t *testing.T) {
	var total SourceStats
	rapid.Check(t, func(rt *rapid.T) {
		recoverable := rapid.Bool().Draw(rt, "recoverable")
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 20, 120).Draw(rt, "steps")
		if rapid.Bool().Draw(rt, "calm") {
			steps = slices.DeleteFunc(steps, func(s step) bool { return !s.calm() })
		}
		var failed error
		synctest.Test(t, func(t *testing.T) {
			r := run{stream: newFakeStream(), conn: &fakeConn{}, lose: make(map[*routerModel]int)}
			r.stream.store(kv.TierDevice, 1, 2, 3)
			p := openBubble(t, r.conn, recoverable)
			defer closeBubble(t, p)
			r.source = addSource(t, p, r.stream)
			for range 2 {
				router := newRouterModel(r.source)
				r.routers = append(r.routers, router)
				if _, failed = router.ask(); failed != nil {
					return
				}
			}
			for i, s := range steps {
				if failed = r.do(s); failed != nil {
					failed = fmt.Errorf("step %d, %s: %w", i, s.what, failed)
					return
				}
			}
			failed = r.settle()
			total.Add(r.source.Stats())
		})
		if failed != nil {
			rt.Fatal(failed)
		}
	})
	t.Logf("%+v", total)
	if total.Repairs == 0 || total.Dumps == 0 || total.Queries == total.Dumps || total.Probes == 0 || total.Dropped == 0 || total.Unsent == 0 {
		t.Error("the runs did not reach every way to repair")
	}
}
