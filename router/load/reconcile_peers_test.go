package load

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// peers are accounts that tell one another of their bookings, as routers do.
type peers struct {
	clock fakeClock
	all   []*Account
	// onWay are the news that have not arrived.
	onWay []func()
}

func newPeers(t rapid.TB, n int) *peers {
	p := &peers{clock: fakeClock{time.Unix(1000, 0)}}
	for i := range n {
		a, err := New(Options{Now: func() time.Time { return p.clock.now }, Journal: peer{p, i}})
		if err != nil {
			t.Fatal(err)
		}
		a.Align(members(worker1, worker2))
		p.all = append(p.all, a)
	}
	return p
}

// deliver makes all news arrive.
func (p *peers) deliver() {
	for _, arrive := range p.onWay {
		arrive()
	}
	p.onWay = nil
}

// report lets time pass for some seconds. In each one, all accounts get the engine's report before they
// hear of one another. It returns the number of phantoms that each account found.
func (p *peers) report(seconds int, running, waiting uint64) []int {
	found := make([]int, len(p.all))
	for range seconds {
		p.clock.advance(time.Second)
		for i, a := range p.all {
			found[i] += a.Reconcile(worker1, running, waiting)
		}
		p.deliver()
	}
	return found
}

func (p *peers) add(t rapid.TB, at int, id string) {
	if err := p.all[at].Add(&Request{ID: id, Worker: worker1, PrefillTokens: 10}); err != nil {
		t.Fatal(err)
	}
}

// expectTokens checks the pending prefill tokens of worker 1 at every account.
func (p *peers) expectTokens(t rapid.TB, when string, want int64) {
	for i, a := range p.all {
		if got := a.Columns().PrefillTokens[0]; got != want {
			t.Fatalf("%s: account %d has %d prefill tokens, want %d", when, i, got, want)
		}
	}
}

// peer is the journal of account n.
type peer struct {
	*peers
	n int
}

func (p peer) tell(news func(to *Account, router uint64)) {
	for i, to := range p.all {
		if i != p.n {
			p.onWay = append(p.onWay, func() { news(to, uint64(p.n)+1) })
		}
	}
}

func (p peer) Booked(b *Booking) {
	copied := *b
	p.tell(func(to *Account, router uint64) {
		if err := to.AddForeign(router, &copied); err != nil {
			panic(err)
		}
	})
}

func (p peer) Progressed(number uint64, progress Progress) {
	p.tell(func(to *Account, router uint64) { to.ProgressForeign(Foreign{router, number}, &progress) })
}

func (p peer) Ended(number uint64) {
	p.tell(func(to *Account, router uint64) { to.EndForeign(Foreign{router, number}) })
}

// TestAPhantomOfAPeerIsCountedOnce: a phantom of another router explains the surplus of an engine's
// reports, so that no request of this router is taken for one.
func TestAPhantomOfAPeerIsCountedOnce(t *testing.T) {
	p := newPeers(t, 2)
	p.add(t, 0, "gone")
	p.deliver()
	p.add(t, 1, "there")
	p.add(t, 1, "there too")
	p.deliver()
	if found := p.report(40, 2, 0); !slices.Equal(found, []int{1, 0}) {
		t.Errorf("phantoms %v, want 1 and 0", found)
	}
	p.expectTokens(t, "one is gone", 20)
	// Its client reports after all.
	if err := p.all[0].AddOutputBlock("gone", nil); err != nil {
		t.Fatal(err)
	}
	p.deliver()
	if found := p.report(40, 3, 0); !slices.Equal(found, []int{0, 0}) {
		t.Errorf("phantoms %v, want none", found)
	}
	if found := p.report(40, 1, 0); found[0]+found[1] != 2 {
		t.Errorf("phantoms %v, want 2", found)
	}
	p.expectTokens(t, "all prefills are gone", 0)
}

// TestRoutersAgreeOnAPhantom: bookings that cross on their way arrive in another order at each router.
func TestRoutersAgreeOnAPhantom(t *testing.T) {
	p := newPeers(t, 2)
	p.add(t, 0, "a")
	p.add(t, 1, "b")
	p.deliver()
	if found := p.report(10, 1, 0); found[0]+found[1] != 1 {
		t.Errorf("phantoms %v, want 1", found)
	}
	p.expectTokens(t, "one is gone", 10)
}

// TestTheRouterOfARequestKnowsMore: a router that heard of its request keeps it, and another request is
// found.
func TestTheRouterOfARequestKnowsMore(t *testing.T) {
	p := newPeers(t, 2)
	p.add(t, 0, "waits")
	p.deliver()
	p.add(t, 1, "gone")
	p.deliver()
	found := make([]int, 2)
	for range 30 {
		if err := p.all[0].Touch("waits"); err != nil {
			t.Fatal(err)
		}
		for i, n := range p.report(1, 1, 0) {
			found[i] += n
		}
	}
	if !slices.Equal(found, []int{0, 1}) {
		t.Errorf("phantoms %v, want 0 and 1", found)
	}
}

// TestPeersFindAsManyPhantomsAsThereAre: whatever routers booked, and in whatever order they heard of it.
func TestPeersFindAsManyPhantomsAsThereAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPeers(t, rapid.IntRange(1, 4).Draw(t, "routers"))
		n := rapid.IntRange(1, 12).Draw(t, "requests")
		gone := rapid.IntRange(0, n).Draw(t, "gone")
		for i := range n {
			p.add(t, rapid.IntRange(0, len(p.all)-1).Draw(t, "router"), fmt.Sprint(i))
			if rapid.Bool().Draw(t, "arrives") {
				p.deliver()
			}
			p.clock.advance(time.Duration(rapid.IntRange(0, 100).Draw(t, "ms")) * time.Millisecond)
		}
		p.deliver()
		sum := 0
		for _, found := range p.report(60, uint64(n-gone), 0) {
			sum += found
		}
		if sum != gone {
			t.Fatalf("%d phantoms, want %d", sum, gone)
		}
		p.expectTokens(t, "after the reports", int64(10*(n-gone)))
	})
}

// TestPeersLeaveRoomForOwnRequests: other routers fill at most three quarters of an account.
func TestPeersLeaveRoomForOwnRequests(t *testing.T) {
	f := newFixture(t, Options{MaxRequests: 8, MaxBlocks: 80})
	foreign := func(number uint64, blocks int) error {
		return f.AddForeign(9, &Booking{Number: number, Request: Request{ID: "of a peer", Worker: worker1,
			Sequence: slices.Repeat(hashes(5), blocks)}, Progress: Progress{PromptWeight: one}})
	}
	if err := foreign(1, 61); !errors.Is(err, ErrTooManyRequests) {
		t.Errorf("61 blocks of 80: %v", err)
	}
	if err := foreign(MaxNumber+1, 0); err == nil {
		t.Error("no error for a number out of range")
	}
	for n := range uint64(6) {
		if err := foreign(n, 10); err != nil {
			t.Errorf("booking %d: %v", n, err)
		}
	}
	if err := foreign(6, 0); !errors.Is(err, ErrTooManyRequests) {
		t.Errorf("7 requests of 8: %v", err)
	}
	f.EndForeign(Foreign{9, 0})
	if err := foreign(6, 10); err != nil {
		t.Error(err)
	}
	f.add("own", worker1, 5, slices.Repeat(hashes(6), 20)...)
	f.add("own too", worker1, 5)
}

// TestAFaultyNumberOfAPeerDoesNotEndTheOwnOnes: peers accept the own bookings after it.
func TestAFaultyNumberOfAPeerDoesNotEndTheOwnOnes(t *testing.T) {
	for _, faulty := range []uint64{maxFollowed - 1, maxFollowed, maxFollowed + 1, MaxNumber - 1, MaxNumber} {
		f, peer := newFixture(t, Options{}), newFixture(t, Options{})
		booking := func(number uint64) *Booking {
			return &Booking{Number: number, Request: Request{ID: "p", Worker: worker1}, Progress: Progress{PromptWeight: one}}
		}
		if err := f.AddForeign(9, booking(faulty)); err != nil {
			t.Fatal(err)
		}
		for own := range 3 {
			f.add(fmt.Sprint(own), worker1, 5)
			if err := peer.AddForeign(8, booking(f.LastBooking())); err != nil {
				t.Errorf("after %d: %v", faulty, err)
			}
		}
	}
}
