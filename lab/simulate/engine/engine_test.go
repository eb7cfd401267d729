package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// mirror is a Sink. It fails the test when a block is removed that was not stored.
type mirror struct {
	t    interface{ Fatalf(string, ...any) }
	held map[kv.SequenceHash]bool
}

func (m *mirror) Stored(parent kv.SequenceHash, blocks []kvevent.StoredBlock) {
	if parent != 0 && !m.held[parent] {
		m.t.Fatalf("a child of %x is stored, which is not there", parent)
	}
	for _, b := range blocks {
		if m.held[b.Hash] {
			m.t.Fatalf("%x is stored twice", b.Hash)
		}
		m.held[b.Hash] = true
	}
}

func (m *mirror) Removed(hashes []kv.SequenceHash) {
	for _, h := range hashes {
		if !m.held[h] {
			m.t.Fatalf("%x is removed, which is not there", h)
		}
		delete(m.held, h)
	}
}

const block = 16

// bench is an engine of 100 blocks on a node.
type bench struct {
	clock              *Clock
	node               *Node
	engine             *Engine
	device, host, disk *mirror
}

func newBench(t interface{ Fatalf(string, ...any) }, host, disk int) *bench {
	b := &bench{clock: &Clock{}}
	made := func() *mirror { return &mirror{t, make(map[kv.SequenceHash]bool)} }
	b.device, b.host, b.disk = made(), made(), made()
	b.node = NewNode(b.clock, NodeOptions{ID: 9, HostBlocks: host, DiskBlocks: disk, BlockBytes: 1 << 20, DiskBytes: 1e9, Host: b.host, Disk: b.disk})
	var err error
	b.engine, err = New(b.clock, b.node, Options{ID: kv.Worker{ID: 1}, Steps: DefaultSteps(), Speed: 1, BlockSize: block, Blocks: 100,
		Budget: 256, MaxRunning: 16, HostBytes: 10e9, Device: b.device})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return b
}

// request returns a request whose first shared blocks are those of a text that many share.
func request(id, shared, prompt, output int) *Request {
	r := &Request{Prompt: prompt, Output: output}
	var locals []kv.LocalHash
	for i := range (prompt + output) / block {
		local := kv.LocalHash(1 + i)
		if i >= shared {
			local = kv.LocalHash(1_000*id + i)
		}
		locals = append(locals, local)
		r.Numbers = append(r.Numbers, uint32(local))
	}
	for i, hash := range kv.AppendSequence(nil, locals) {
		r.Blocks = append(r.Blocks, kvevent.StoredBlock{Hash: hash, Local: locals[i]})
	}
	r.First, r.Block, r.Last, r.Lost, r.Gap = func() {}, func() {}, func() {}, func() {}, func(time.Duration) {}
	return r
}

// TestEveryRequestEndsAndEveryBlockIsGivenBack: whatever comes in whatever order, each request has
// all of its tokens in the end, no block is referenced, and the events tell what is held.
func TestEveryRequestEndsAndEveryBlockIsGivenBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBench(t, rapid.IntRange(0, 150).Draw(t, "host"), rapid.IntRange(0, 300).Draw(t, "disk"))
		n := rapid.IntRange(1, 40).Draw(t, "requests")
		ended, tokens, want := 0, 0, 0
		for i := range n {
			r := request(i+1, rapid.IntRange(0, 20).Draw(t, "shared"), rapid.IntRange(1, 800).Draw(t, "prompt"), rapid.IntRange(1, 200).Draw(t, "output"))
			want += r.Output
			r.First = func() { tokens++ }
			r.Gap = func(d time.Duration) {
				if d <= 0 {
					t.Fatalf("a token %v after the last one", d)
				}
				tokens++
			}
			r.Last = func() {
				ended++
				if sum := r.Cached.Device + r.Cached.Host + r.Cached.Disk + r.Cached.Computed; sum != r.Prompt {
					t.Fatalf("%+v of %d prompt tokens", r.Cached, r.Prompt)
				}
			}
			b.clock.At(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms"))*time.Millisecond, func() { b.engine.Submit(r) })
		}
		b.clock.Run(math.MaxInt64)
		d := b.engine.device
		if ended != n || tokens != want {
			t.Fatalf("%d of %d requests, %d of %d tokens", ended, n, tokens, want)
		}
		if d.anonymous != 0 || d.unreferenced != d.blocks.n || d.available() != 100 || len(b.device.held) != d.blocks.n {
			t.Fatalf("%d anonymous, %d of %d unreferenced, %d told", d.anonymous, d.unreferenced, d.blocks.n, len(b.device.held))
		}
		for _, tier := range []struct {
			t *tier
			m *mirror
		}{{b.node.host, b.host}, {b.node.disk, b.disk}} {
			if tier.t.blocks.n != len(tier.m.held) || tier.t.blocks.n > tier.t.capacity {
				t.Fatalf("%d blocks, %d told, capacity %d", tier.t.blocks.n, len(tier.m.held), tier.t.capacity)
			}
		}
	})
}

// TestTiersServeWhatTheDeviceLost: a prompt whose blocks left the device comes from host memory, and
// from the disk when host memory has lost it too.
func TestTiersServeWhatTheDeviceLost(t *testing.T) {
	for _, tc := range []struct {
		host, disk int
		want       Served
	}{
		{0, 0, Served{Computed: 801}}, {500, 0, Served{Host: 800, Computed: 1}},
		{60, 500, Served{Disk: 800, Computed: 1}},
	} {
		b := newBench(t, tc.host, tc.disk)
		b.engine.secondsPerToken = 1 // loading is always sooner than computing
		var got Served
		for i := range 4 { // the same prompt first and last
			id := i%3 + 1
			r := request(id, 0, 801, 10)
			r.Last = func() { got = r.Cached }
			b.engine.Submit(r)
			b.clock.Run(math.MaxInt64)
		}
		if got != tc.want {
			t.Errorf("%d host and %d disk blocks: %+v, want %+v", tc.host, tc.disk, got, tc.want)
		}
	}
}

// TestPreemptionComputesAgain: two requests that fit one by one and not together both end.
func TestPreemptionComputesAgain(t *testing.T) {
	b := newBench(t, 0, 0)
	ended := 0
	for id := range 2 {
		r := request(id+1, 0, 500, 600)
		r.Last = func() { ended++ }
		b.engine.Submit(r)
	}
	b.clock.Run(math.MaxInt64)
	if ended != 2 || b.engine.Preempted == 0 {
		t.Errorf("%d ended, %d preempted", ended, b.engine.Preempted)
	}
}

// TestADeadEngineLosesItsRequests, also those that wait for their blocks, and the one that never fits.
func TestADeadEngineLosesItsRequests(t *testing.T) {
	b := newBench(t, 500, 0)
	b.engine.secondsPerToken = 1 // loading is always sooner than computing
	for id := range 3 {
		b.engine.Submit(request(10+id, 0, 801, 1)) // the last one evicts the first one from the device
		b.clock.Run(math.MaxInt64)
	}
	loads, lost := request(10, 0, 801, 1), 0
	loads.Lost = func() { lost++ }
	b.engine.Submit(loads)
	if b.engine.loading != 1 {
		t.Fatalf("%d requests load", b.engine.loading)
	}
	b.engine.Kill()
	b.clock.Run(math.MaxInt64)
	if lost != 1 {
		t.Errorf("%d of 1 request that loads is lost", lost)
	}
	b, lost = newBench(t, 0, 0), 0
	for id := range 3 {
		r := request(id+1, 0, 100+2000*(id/2), 50)
		r.Lost = func() { lost++ }
		b.engine.Submit(r)
	}
	b.clock.After(30*time.Millisecond, b.engine.Kill)
	b.clock.Run(math.MaxInt64)
	if lost != 3 || b.engine.Dropped != 1 {
		t.Errorf("%d lost, %d dropped", lost, b.engine.Dropped)
	}
}

// TestStepsInterpolateWhatIsRecorded and go on beyond the last record.
func TestStepsInterpolateWhatIsRecorded(t *testing.T) {
	table, err := ReadSteps(strings.NewReader(`{"about": "c", "tokens": [1, 3], "prefill_pairs": [0, 10e6], "decode_context": [0], "step_ms": [[[2], [12]], [[4], [14]]]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range [][3]float64{{1, 0, 2}, {2, 0, 3}, {3, 10e6, 14}, {2, 5e6, 8}, {5, 0, 6}} {
		if got := table.Milliseconds(tc[0], tc[1], 77); math.Abs(got-tc[2]) > 1e-9 {
			t.Errorf("%v: %v", tc, got)
		}
	}
	if _, ok := table.Draw(rand.New(rand.NewPCG(1, 1)), 1, 0, 0); ok || table.Outside(nil) != 0 {
		t.Error("times are drawn that are not recorded")
	}
}

// recorded is a table with ratios.
const recorded = `{"about": "c", "block_size": 16, "blocks": 100, "budget": 256, "max_running": 16, "tokens": [1], "prefill_pairs": [0], "decode_context": [0],
	"step_ms": [[[2]]], "ratios": [{"from_tokens": 1, "values": [1]}, {"from_tokens": 9, "values": [3, 5]}], "outside_ms": [7]}`

// TestRecordingsNameWhatIsWrong.
func TestRecordingsNameWhatIsWrong(t *testing.T) {
	if _, err := ReadSteps(strings.NewReader(recorded)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range [][3]string{
		{`"blocks": 100`, `"blocks": -1`, "blocks: -1"}, {`"tokens": [1]`, `"tokens": []`, "tokens: 0 values"},
		{`"prefill_pairs": [0]`, `"prefill_pairs": [1, 1]`, "prefill_pairs: value 1"}, {`[[[2]]]`, `[]`, "step_ms: 0 planes"},
		{`[[[2]]]`, `[[]]`, "step_ms[0]: 0 rows"}, {`[[[2]]]`, `[[[2, 3]]]`, "step_ms[0][0]: 2 values"}, {`[[[2]]]`, `[[[-2]]]`, "step_ms[0][0]: value 0"},
		{`"from_tokens": 9`, `"from_tokens": 1`, "ratios[1].from_tokens"}, {`[3, 5]`, `[]`, "ratios[1].values"}, {`[7]`, `[-7]`, "outside_ms: value 0"},
		{`"about"`, `"abuot"`, "abuot"},
	} {
		if _, err := ReadSteps(strings.NewReader(strings.Replace(recorded, tc[0], tc[1], 1))); err == nil || !strings.Contains(err.Error(), tc[2]) {
			t.Errorf("%s: %v, want %q", tc[1], err, tc[2])
		}
	}
}

// TestARecordedEngineTakesWhatWasRecorded: a step takes one of its ratios, batches are not padded, and a
// request is outside of the engine for as long as recorded.
func TestARecordedEngineTakesWhatWasRecorded(t *testing.T) {
	b := newBench(t, 0, 0)
	table, err := ReadSteps(strings.NewReader(recorded))
	if err != nil {
		t.Fatal(err)
	}
	b.engine.options.Steps = table
	r := request(1, 0, 20, 3)
	first, gaps := time.Duration(0), []time.Duration{}
	r.First = func() { first = b.clock.Now() }
	r.Gap = func(d time.Duration) { gaps = append(gaps, d) }
	b.engine.Submit(r)
	b.clock.Run(math.MaxInt64)
	if first != 13*time.Millisecond && first != 17*time.Millisecond || len(gaps) != 2 || gaps[0] != 2*time.Millisecond || gaps[1] != 2*time.Millisecond {
		t.Errorf("the first token after %v, further ones after %v", first, gaps)
	}
}

// TestEventsOfOneTimeComeInTheirOrder.
func TestEventsOfOneTimeComeInTheirOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	c := &Clock{}
	last, number := time.Duration(-1), -1
	for i := range 500 {
		at := time.Duration(rng.IntN(20))
		c.At(at, func() {
			if c.Now() != at || at < last || at == last && i < number {
				t.Errorf("event %d of %d comes at %d after event %d", i, at, c.Now(), number)
			}
			last, number = at, i
		})
	}
	if n := c.Run(10); n == 0 || c.Now() > 10 {
		t.Error(fmt.Sprint(n, c.Now()))
	}
	c.Run(math.MaxInt64)
}
