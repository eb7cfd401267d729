package replica

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

var model = Model{"m", 16}

// fleet is some routers on a bus that loses, repeats and reorders messages. truth has what clients have
// booked and not freed, by router and id.
type fleet struct {
	t       *rapid.T
	now     time.Time
	routers []*member
	born    uint64
	wire    []packet
	asks    []question
	truth   map[string]truth
	faulty  bool
	members *index.Members
}

// member is one router: its scheduler and its state.
type member struct {
	*State
	scheduler *schedule.Scheduler
	dead      bool
}

// active returns every booked request of the router.
func (m *member) active() (all []load.Active) {
	m.scheduler.WithAccount(func(a *load.Account) (released kv.Worker, ok bool) {
		all = a.Active(nil)
		return released, false
	})
	return all
}

// packet is a message on its way to one router, question a question of one router.
type packet struct {
	to   *member
	data []byte
}

type question struct {
	from *member
	ask  Ask
}

// truth is a booking as clients know it.
type truth struct {
	Router  uint64
	ID      string
	Worker  kv.Worker
	Prefill int64
	Blocks  int32
	// Awaits is true for a request that may have to compute what another one leaves. Its router alone
	// knows how much: check asks it.
	Awaits bool
}

func newFleet(t *rapid.T, routers int) *fleet {
	f := &fleet{t: t, now: time.Unix(1000, 0), truth: make(map[string]truth), faulty: true, members: &index.Members{}}
	for w := range 3 {
		f.members.List = append(f.members.List, index.Member{Worker: kv.Worker{ID: kv.WorkerID(w + 1)}})
	}
	for range routers {
		f.join()
	}
	return f
}

// join starts another router.
func (f *fleet) join() {
	f.born++
	m := &member{State: NewState("c", f.born)}
	f.open(m)
	f.routers = append(f.routers, m)
}

// open opens the model at a router.
func (f *fleet) open(m *member) {
	var err error
	m.scheduler, err = schedule.New(schedule.Options{
		Config: schedule.DefaultConfig(), Members: func() *index.Members { return f.members },
		Load: load.Options{Now: func() time.Time { return f.now }, Journal: m.Open(model), Expiry: time.Hour},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	m.Join(model, m.scheduler)
}

// reopen closes the model at a router, and opens it again. The goodbye may be lost.
func (f *fleet) reopen() {
	m := f.alive()
	for _, o := range m.Close(model) {
		f.send(o.Data)
	}
	f.end(m)
	f.open(m)
}

// end takes the requests of a router out of the truth.
func (f *fleet) end(m *member) {
	for id, b := range f.truth {
		if b.Router == m.router {
			delete(f.truth, id)
		}
	}
}

// alive returns a living router.
func (f *fleet) alive() *member { return rapid.SampledFrom(f.routers).Draw(f.t, "router") }

// kill ends a router without a word. Its requests end with it.
func (f *fleet) kill() {
	if len(f.routers) < 2 {
		return
	}
	m := f.alive()
	m.dead = true
	f.routers = slices.DeleteFunc(f.routers, func(o *member) bool { return o == m })
	f.end(m)
}

func (f *fleet) book() {
	m := f.alive()
	n := rapid.IntRange(0, 20).Draw(f.t, "id")
	id := fmt.Sprintf("%d/%d", m.router, n)
	if _, ok := f.truth[id]; ok {
		return
	}
	w := f.members.List[rapid.IntRange(0, 2).Draw(f.t, "worker")].Worker
	blocks := rapid.IntRange(0, 4).Draw(f.t, "blocks")
	r := &schedule.Request{ID: id, Tokens: 16 * max(1, blocks), BlockSize: 16, TrackPrefill: true}
	for b := range blocks {
		r.Sequence = append(r.Sequence, kv.SequenceHash(100*(n%3)+b+1)) // some prompts share their blocks
	}
	if blocks > 0 && rapid.Bool().Draw(f.t, "awaits") {
		f.bookAwaiting(m, &load.Request{ID: id, Worker: w, Sequence: r.Sequence, BlockSize: 16,
			PrefillTokens: 1, Awaited: load.Awaited{To: int32(blocks)}})
		return
	}
	if err := m.scheduler.Add(r, w, 0); err != nil {
		f.t.Fatal(err)
	}
	f.truth[id] = truth{m.router, id, w, int64(r.Tokens), 0, false}
}

// bookAwaiting books a request whose blocks other requests are about to compute.
func (f *fleet) bookAwaiting(m *member, r *load.Request) {
	m.scheduler.WithAccount(func(a *load.Account) (released kv.Worker, ok bool) {
		if err := a.Add(r); err != nil {
			f.t.Fatal(err)
		}
		return released, false
	})
	f.truth[r.ID] = truth{m.router, r.ID, r.Worker, int64(r.PrefillTokens), 0, true}
}

// some calls do with a booking and its router, if there is any.
func (f *fleet) some(do func(m *member, b *truth)) {
	ids := make([]string, 0, len(f.truth))
	for id := range f.truth {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	b := f.truth[rapid.SampledFrom(ids).Draw(f.t, "booking")]
	i := slices.IndexFunc(f.routers, func(m *member) bool { return m.router == b.Router })
	do(f.routers[i], &b)
}

func (f *fleet) prefill() {
	f.some(func(m *member, b *truth) {
		if err := m.scheduler.MarkPrefillCompleted(b.ID); err != nil {
			f.t.Fatal(err)
		}
		b.Prefill = 0
		f.truth[b.ID] = *b
	})
}

func (f *fleet) output() {
	f.some(func(m *member, b *truth) {
		if err := m.scheduler.AddOutputBlock(b.ID, nil); err != nil {
			f.t.Fatal(err)
		}
		b.Blocks++
		f.truth[b.ID] = *b
	})
}

func (f *fleet) free() {
	f.some(func(m *member, b *truth) {
		if !m.scheduler.Free(b.ID) {
			f.t.Fatalf("request %s is not booked", b.ID)
		}
		delete(f.truth, b.ID)
	})
}

// step lets time pass, and routers send and ask.
func (f *fleet) step() {
	f.now = f.now.Add(time.Duration(rapid.IntRange(1, 700).Draw(f.t, "ms")) * time.Millisecond)
	for _, m := range f.routers {
		for _, o := range m.Outgoing(nil, f.now) {
			f.send(o.Data)
		}
		for _, a := range m.Tick(f.now) {
			f.asks = append(f.asks, question{m, a})
		}
	}
}

// send puts a message on its way to every router; some do not get it, and some get it twice.
func (f *fleet) send(data []byte) {
	for _, to := range f.routers {
		copies := 1
		if f.faulty {
			copies = rapid.SampledFrom([]int{1, 1, 1, 0, 2}).Draw(f.t, "copies")
		}
		for range copies {
			f.wire = append(f.wire, packet{to, data})
		}
	}
}

// deliver delivers a message, out of order when there are faults.
func (f *fleet) deliver() {
	if len(f.wire) == 0 {
		return
	}
	i := 0
	if f.faulty {
		i = rapid.IntRange(0, min(3, len(f.wire)-1)).Draw(f.t, "message")
	}
	p := f.wire[i]
	f.wire = slices.Delete(f.wire, i, i+1)
	if !p.to.dead {
		p.to.Receive(p.data, f.now)
	}
}

var errLost = errors.New("the answer is lost")

// answer answers a question, or loses it.
func (f *fleet) answer() {
	if len(f.asks) == 0 {
		return
	}
	q := f.asks[0]
	f.asks = f.asks[1:]
	var answer []byte
	err := errLost
	lost := f.faulty && rapid.IntRange(0, 3).Draw(f.t, "lost") == 0
	for _, m := range f.routers {
		if !lost && askSubject("c", m.router) == q.ask.Subject {
			answer, err = m.Answer(q.ask.Data, nil)
		}
	}
	if f.faulty && rapid.Bool().Draw(f.t, "late") { // messages overtake the answer
		for range rapid.IntRange(0, 6).Draw(f.t, "overtaking") {
			f.deliver()
		}
	}
	if !q.from.dead {
		for _, a := range q.from.Answered(&q.ask, answer, err, f.now) {
			f.asks = append(f.asks, question{q.from, a})
		}
	}
}

// quiet lets everything arrive, without faults, for longer than a lease.
func (f *fleet) quiet() {
	f.faulty = false
	for end := f.now.Add(lease + 2*maxRetry); f.now.Before(end); {
		f.step()
		for len(f.wire)+len(f.asks) > 0 {
			f.deliver()
			f.answer()
		}
	}
}

// check compares every router with the truth: each live request is booked once, and all have the same
// loads.
func (f *fleet) check() {
	for _, m := range f.routers {
		for _, a := range m.active() {
			if b := f.truth[a.ID]; a.Router == 0 && b.Awaits {
				b.Prefill = a.PrefillTokens
				f.truth[a.ID] = b
			}
		}
	}
	want := make([]truth, 0, len(f.truth))
	for _, b := range f.truth {
		want = append(want, b)
	}
	byID := func(a, b truth) int { return strings.Compare(a.ID, b.ID) }
	slices.SortFunc(want, byID)
	var loads []schedule.PotentialLoad
	for i, m := range f.routers {
		got := []truth{}
		for _, a := range m.active() {
			got = append(got, truth{cmp.Or(a.Router, m.router), a.ID, a.Worker, a.PrefillTokens, a.OutputBlocks, f.truth[a.ID].Awaits})
		}
		slices.SortFunc(got, byID)
		if diff := gocmp.Diff(want, got); diff != "" {
			f.t.Fatalf("router %d: (-want +got)\n%s", m.router, diff)
		}
		have := m.scheduler.Loads(nil)
		if i == 0 {
			loads = have
		}
		if diff := gocmp.Diff(loads, have); diff != "" {
			f.t.Fatalf("routers %d and %d: loads differ\n%s", f.routers[0].router, m.router, diff)
		}
	}
}

// TestEveryLiveRequestIsBookedOnceInEachRouter: whatever the bus does, and whoever dies or joins.
func TestEveryLiveRequestIsBookedOnceInEachRouter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet(t, rapid.IntRange(2, 4).Draw(t, "routers"))
		actions := map[string]func(*rapid.T){"": func(*rapid.T) {}}
		for name, do := range map[string]func(){
			"book": f.book, "book another": f.book, "prefill": f.prefill, "output": f.output, "free": f.free,
			"step": f.step, "deliver": f.deliver, "deliver more": func() {
				for range 5 {
					f.deliver()
				}
			}, "answer": f.answer, "kill": f.kill, "reopen": f.reopen, "join": func() {
				if len(f.routers) < 5 {
					f.join()
				}
			},
		} {
			actions[name] = func(*rapid.T) { do() }
		}
		t.Repeat(actions)
		f.quiet()
		f.check()
	})
}
