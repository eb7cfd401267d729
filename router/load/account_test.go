package load

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

var worker1, worker2 = kv.Worker{ID: 1}, kv.Worker{ID: 2}

// fakeClock is a clock that stands still until it is moved.
type fakeClock struct{ now time.Time }

func (c *fakeClock) advance(d time.Duration) { c.now = c.now.Add(d) }

// fixture is an account of workers 1 and 2 under a clock.
type fixture struct {
	testing.TB
	*Account
	clock *fakeClock
}

func newFixture(t testing.TB, o Options) fixture {
	t.Helper()
	clock := &fakeClock{now: time.Unix(1000, 0)}
	o.Now = func() time.Time { return clock.now }
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	a.Align(members(worker1, worker2))
	return fixture{t, a, clock}
}

func members(workers ...kv.Worker) *index.Members {
	m := &index.Members{}
	for _, w := range workers {
		m.List = append(m.List, index.Member{Worker: w})
	}
	return m
}

// hashes takes the numbers for SequenceHashes; they need not be a chain.
func hashes(of ...kv.SequenceHash) []kv.SequenceHash { return of }

func (f fixture) add(id string, w kv.Worker, prefill int, sequence ...kv.SequenceHash) {
	f.Helper()
	f.addModelled(id, w, prefill, 0, sequence...)
}

func (f fixture) addModelled(id string, w kv.Worker, prefill int, d time.Duration, sequence ...kv.SequenceHash) {
	f.Helper()
	r := Request{ID: id, Worker: w, Sequence: sequence, PrefillTokens: prefill, PrefillDuration: d}
	if err := f.Add(&r); err != nil {
		f.Fatal(err)
	}
}

func (f fixture) output(id string, decay ...float64) {
	f.Helper()
	var fraction *float64
	if len(decay) > 0 {
		fraction = &decay[0]
	}
	if err := f.AddOutputBlock(id, fraction); err != nil {
		f.Fatal(err)
	}
}

func (f fixture) prefillDone(id string) {
	f.Helper()
	if err := f.MarkPrefillCompleted(id); err != nil {
		f.Fatal(err)
	}
}

// expect checks the load of worker 1.
func (f fixture) expect(when string, blocks int32, tokens int64) {
	f.Helper()
	c := f.Columns()
	if c.ActiveBlocks[0] != blocks || c.PrefillTokens[0] != tokens {
		f.Errorf("%s: %d blocks, %d tokens; want %d, %d", when, c.ActiveBlocks[0], c.PrefillTokens[0], blocks, tokens)
	}
}

// empty checks that nothing is left of no requests.
func (f fixture) empty() {
	f.Helper()
	s := f.Stats()
	if s.Requests+s.Workers+s.Blocks+s.DistinctBlocks+s.Nodes != 0 || len(f.prompts.root.children) != 0 ||
		f.confirmed.n != 0 || len(f.decaying) != 0 || len(f.freeSlots) != len(f.slots) {
		f.Errorf("something is left of no requests: %+v", s)
	}
	f.expect("empty", 0, 0)
}

// TestOutputBlocksDecay: a decay weighs the output and what of the prompt is the
// request's alone; blocks that became shared keep the weight they had.
func TestOutputBlocksDecay(t *testing.T) {
	f := newFixture(t, Options{})
	f.add("a", worker1, 0, 1, 2, 3)
	f.expect("prompt", 3, 0)
	f.output("a", .5)
	f.expect("half of prompt and output", 2, 0)
	f.add("b", worker1, 0, 1, 2)
	f.expect("another on its prefix", 2, 0)
	f.output("a", 0)
	f.expect("only the shared halves", 1, 0)
	f.Free("a")
	f.expect("b alone", 1, 0)
	f.Free("b")
	f.empty()
}

// TestWeightsAddUpWithoutDrift: what is added in decimal fractions goes to the
// last bit, and ten halves made of tenths round as halves.
func TestWeightsAddUpWithoutDrift(t *testing.T) {
	f := newFixture(t, Options{})
	for i := range 5 {
		id := fmt.Sprint(i)
		f.add(id, worker1, 0)
		f.output(id, .1)
	}
	f.expect("five tenths", 1, 0)
	for i := range 5 {
		f.Free(fmt.Sprint(i))
	}
	f.empty()
}

func TestDuplicatesAndUnknownRequestsAreRefused(t *testing.T) {
	f := newFixture(t, Options{})
	f.add("a", worker1, 7, 1)
	if err := f.Add(&Request{ID: "a", Worker: worker2, Sequence: hashes(2)}); !errors.Is(err, ErrDuplicateRequest) {
		t.Errorf("added twice: %v", err)
	}
	f.expect("as before", 1, 7)
	half := .5
	for what, err := range map[string]error{
		"touch": f.Touch("b"), "prefill": f.MarkPrefillCompleted("b"), "output": f.AddOutputBlock("b", &half),
	} {
		if !errors.Is(err, ErrUnknownRequest) || !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if s := f.Stats(); s.Duplicates != 1 || s.Requests != 1 {
		t.Errorf("%+v", s)
	}
}

// TestFullAccountRefuses: beyond a bound nothing is added, and the error has the
// figures; what was freed makes room.
func TestFullAccountRefuses(t *testing.T) {
	f := newFixture(t, Options{MaxRequests: 2, MaxBlocks: 5})
	f.add("a", worker1, 1, 1, 2, 3)
	err := f.Add(&Request{ID: "b", Worker: worker1, Sequence: hashes(1, 2, 3)})
	if !errors.Is(err, ErrTooManyRequests) || !strings.Contains(err.Error(), "3 blocks of 5") {
		t.Errorf("too many blocks: %v", err)
	}
	f.add("b", worker1, 1, 1, 2)
	if err := f.Add(&Request{ID: "c", Worker: worker1}); !errors.Is(err, ErrTooManyRequests) || !strings.Contains(err.Error(), "2 requests of 2") {
		t.Errorf("too many requests: %v", err)
	}
	f.expect("two", 3, 2)
	f.Free("a")
	f.add("c", worker1, 0, 4, 5, 6)
	if s := f.Stats(); s.Refused != 2 {
		t.Errorf("%+v", s)
	}
}

func TestOutOfRangeIsNamed(t *testing.T) {
	f := newFixture(t, Options{})
	long := strings.Repeat("x", maxNameBytes+1)
	for want, r := range map[string]Request{
		"request id: 0 bytes":      {},
		"request id: 4097 bytes":   {ID: long},
		"prefill tokens: -2":       {ID: "a", PrefillTokens: -2},
		"expected output":          {ID: "a", ExpectedOutput: -3},
		"prefill duration: -1ns":   {ID: "a", PrefillDuration: -1},
		"prefill tokens: 21474836": {ID: "a", PrefillTokens: 1 << 31},
	} {
		if err := f.Add(&r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f.add("a", worker1, 0, 1)
	for _, v := range []float64{-.1, 1.1, math.NaN()} {
		if err := f.AddOutputBlock("a", &v); err == nil || !strings.Contains(err.Error(), "is not in 0..1") {
			t.Errorf("decay %v: %v", v, err)
		}
	}
	f.expect("unchanged", 1, 0)
	for want, o := range map[string]Options{
		"expiry: -1ns": {Expiry: -1}, "max active requests: -1": {MaxRequests: -1}, "max active blocks: -1": {MaxBlocks: -1},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestProvisionalRequestsExpireSooner: until the first sign of life, from when on they
// are like any other.
func TestProvisionalRequestsExpireSooner(t *testing.T) {
	f := newFixture(t, Options{Expiry: 10 * time.Second, Provisional: 2 * time.Second})
	for _, id := range []string{"gone", "alive"} {
		if err := f.Add(&Request{ID: id, Worker: worker1, PrefillTokens: 5, Provisional: true}); err != nil {
			t.Fatal(err)
		}
	}
	f.add("plain", worker2, 5)
	f.clock.advance(2 * time.Second)
	if err := f.Touch("alive"); err != nil {
		t.Fatal(err)
	}
	if s := f.Stats(); s.Requests != 3 || s.Provisional != 1 {
		t.Errorf("%+v", s)
	}
	f.clock.advance(time.Nanosecond)
	if n := f.Expire(); n != 1 {
		t.Errorf("%d expired, want the one that nothing was heard of", n)
	}
	f.expect("the one that is alive", 0, 5)
	f.clock.advance(10 * time.Second)
	if n := f.Expire(); n != 2 {
		t.Errorf("%d expired, want both others", n)
	}
	if s := f.Stats(); s.Expired != 3 || s.Unheard != 1 {
		t.Errorf("%+v", s)
	}
	f.empty()
}

// TestRequestsThatNobodyFreedAreTold: those that end in silence and those that lose
// their worker, each once, and no others.
func TestRequestsThatNobodyFreedAreTold(t *testing.T) {
	var ended []string
	f := newFixture(t, Options{Expiry: 10 * time.Second, Ended: func(id string) { ended = append(ended, id) }})
	f.add("silent", worker1, 1, 1)
	f.clock.advance(time.Second)
	f.add("freed", worker1, 1, 1)
	f.Free("freed")
	f.add("lost", worker2, 1, 1)
	f.add("lost too", worker2, 1, 2)
	f.add("moved", worker1, 1, 2)
	f.Free("moved")
	f.clock.advance(9*time.Second + 1)
	f.Expire()
	f.RemoveWorker(worker2)
	f.RemoveWorker(worker2)
	f.Expire()
	if want := []string{"silent", "lost", "lost too"}; !cmp.Equal(ended, want) {
		t.Errorf("told of %q, want %q", ended, want)
	}
	f.empty()
}

// TestExpectedOutputLetsOutputBlocksFade: without a decay of the caller's, what a request
// alone keeps fades as its expected output is generated.
func TestExpectedOutputLetsOutputBlocksFade(t *testing.T) {
	f := newFixture(t, Options{})
	r := Request{ID: "a", Worker: worker1, Sequence: []kv.SequenceHash{1, 2, 3, 4, 5, 6, 7, 8}, ExpectedOutput: 64, BlockSize: 16}
	if err := f.Add(&r); err != nil {
		t.Fatal(err)
	}
	f.expect("at first", 8, 0)
	for i, want := range []int32{7, 5, 3, 0, 0} { // (8+n) * (1-n/4)
		f.output("a")
		f.expect("after block "+string(rune('1'+i)), want, 0)
	}
	f.output("a", 1)
	f.expect("a decay that is given", 14, 0)
	f.Free("a")
	f.add("b", worker1, 0, 1, 2)
	f.output("b")
	f.expect("no expected output", 3, 0)
	f.Free("b")
	f.empty()
}

// TestABookingIsKnownByItsNumber: the end of one that is over leaves alone another of the
// same id.
func TestABookingIsKnownByItsNumber(t *testing.T) {
	f := newFixture(t, Options{})
	f.add("a", worker1, 10, 1)
	first := f.LastBooking()
	f.Free("a")
	f.add("a", worker1, 10, 1)
	if _, ok := f.FreeBooking("a", first); ok || f.Stats().Requests != 1 {
		t.Error("the retry's booking was freed for the first one")
	}
	if w, ok := f.FreeBooking("a", f.LastBooking()); !ok || w != worker1 {
		t.Errorf("%s, %v", w, ok)
	}
	f.empty()
}
