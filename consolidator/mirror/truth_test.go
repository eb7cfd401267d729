package mirror

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/consolidator/checkpoint"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// truthEngine is an engine with a cache: what it holds is the truth.
type truthEngine struct {
	rt *rapid.T
	// parent and the identity of each block that can be; block i is called i+1.
	tree       *residencytest.Tree
	lora, salt []string // by root

	incarnation int
	held        map[kv.EngineHash]int // announcements
	history     [][]byte              // by sequence number
	step        []engineevent.Event
}

func newTruthEngine(rt *rapid.T) *truthEngine {
	e := &truthEngine{rt: rt, tree: residencytest.NewTree(rapid.IntRange(1, 24).Draw(rt, "blocks"), func(i int) int { return rapid.IntRange(-1, i-1).Draw(rt, "parent") }), held: make(map[kv.EngineHash]int)}
	for i := range e.tree.Parent {
		e.lora = append(e.lora, []string{"", "a", "b"}[i%3])
		e.salt = append(e.salt, []string{"", "tenant"}[i%2])
	}
	return e
}

func (e *truthEngine) event(k kvevent.Kind) engineevent.Event {
	return engineevent.Event{Kind: k, BlockSize: testBlockSize, Medium: "GPU", Group: engineevent.NoGroup}
}

func engineName(block int) kv.EngineHash { return kv.EngineHash(block + 1) }

// store computes the blocks down to one, from the first that is not cached on, or
// from an earlier one, which makes second copies.
func (e *truthEngine) store(again bool) {
	path := e.tree.Path(rapid.IntRange(0, len(e.tree.Parent)-1).Draw(e.rt, "leaf"))
	skip := 0
	for !again && skip < len(path) && e.held[engineName(path[skip])] > 0 {
		skip++
	}
	if skip == len(path) {
		return
	}
	ev := e.event(kvevent.Stored)
	ev.LoRAName = e.lora[path[0]]
	if skip > 0 {
		ev.Parent, ev.HasParent = engineName(path[skip-1]), true
	} else {
		ev.Salt = e.salt[path[0]]
	}
	for _, b := range path[skip:] {
		ev.BlockHashes = append(ev.BlockHashes, engineName(b))
		for j := range testBlockSize {
			ev.Tokens = append(ev.Tokens, uint32(b*testBlockSize+j))
		}
		e.held[engineName(b)]++
	}
	e.step = append(e.step, ev)
}

// remove evicts one copy of a cached block without cached children.
func (e *truthEngine) remove() {
	for b := range e.tree.Parent {
		h := engineName(b)
		if e.held[h] == 0 || e.held[h] == 1 && e.hasCachedChild(b) || rapid.Bool().Draw(e.rt, "keep") {
			continue
		}
		if e.held[h]--; e.held[h] == 0 {
			delete(e.held, h)
		}
		ev := e.event(kvevent.Removed)
		ev.BlockHashes = []kv.EngineHash{h}
		e.step = append(e.step, ev)
		return
	}
}

func (e *truthEngine) hasCachedChild(b int) bool {
	for child, parent := range e.tree.Parent {
		if parent == b && e.held[engineName(child)] > 0 {
			return true
		}
	}
	return false
}

func (e *truthEngine) clear() {
	clear(e.held)
	e.step = append(e.step, e.event(kvevent.Cleared))
}

// publish ends a step.
func (e *truthEngine) publish() (seq uint64, payload []byte) {
	payload = engineevent.AppendBatch(nil, &engineevent.Batch{
		// No two batches of any incarnation are the same bytes.
		Timestamp: float64(e.incarnation*1_000_000 + len(e.history)), HasRank: true, Events: e.step,
	})
	e.step = nil
	e.history = append(e.history, payload)
	return uint64(len(e.history) - 1), payload
}

func (e *truthEngine) restart() {
	e.incarnation++
	clear(e.held)
	e.history, e.step = nil, nil
}

func (e *truthEngine) list() []kv.EngineHash {
	var list []kv.EngineHash
	for h := range e.held {
		list = append(list, h)
	}
	return list
}

// sequence is the SequenceHash that the content of block b has.
func (e *truthEngine) sequence(b int) kv.SequenceHash {
	var h kv.Hasher
	path := e.tree.Path(b)
	seed := kv.LocalSeed(e.lora[path[0]], e.salt[path[0]])
	var seq kv.SequenceHash
	for i, b := range path {
		var tokens []uint32
		for j := range testBlockSize {
			tokens = append(tokens, uint32(b*testBlockSize+j))
		}
		local := h.Local(tokens, seed, nil)
		if seq = kv.Chain(seq, local); i == 0 {
			seq = kv.SequenceHash(local)
		}
	}
	return seq
}

// truthRank is a rank on a simulated link and clock.
type truthRank struct {
	t       *testing.T
	e       *truthEngine
	now     time.Time
	buffer  int  // how many batches the engine can replay
	lists   bool // the engine can list its cache
	flaky   bool // but not always
	replays bool
	down    bool // the engine does not answer

	rec     *residencytest.Recorder
	stream  *residency.Stream
	cache   *Cache
	seq     *sequence.Sequencer
	count   *Counters
	losses  *sequence.Counters
	dec     engineevent.Decoder
	batch   engineevent.Batch
	file    []byte // the last checkpoint
	delayed []frame
}

func (r *truthRank) start() {
	r.rec = residencytest.NewRecorder(r.t)
	r.stream = residency.NewStream(testOwner, r.rec)
	r.cache = newCache(r.stream, testBlockSize, 1000)
	r.count, r.losses = r.cache.count, new(sequence.Counters)
	r.cache.cfg.Now = func() time.Time { return r.now }
	cfg := sequence.Config{
		Replay: r.replays, Idle: 200 * time.Millisecond, Timeout: 2 * time.Second, Attempts: 3,
		HeldFrames: 1000, HeldBytes: 1 << 20, Remembered: 1024,
	}
	r.seq = sequence.New(cfg, r, r.losses, r.now)
	if r.file == nil {
		return
	}
	ck, err := checkpoint.Parse(r.file, testCheckpoint)
	if err != nil {
		r.e.rt.Fatal(err)
	}
	r.cache.Restore(ck)
	r.seq.Restore(r.now, ck.Sequence)
}

func (r *truthRank) checkpoint() {
	st := r.seq.State()
	r.file = checkpoint.AppendChecksum(r.cache.AppendCheckpoint(nil, testCheckpoint, st))
}

func (r *truthRank) Readable(payload []byte) bool { return r.dec.Decode(payload, &r.batch) == nil }

func (r *truthRank) Apply(payload []byte) bool {
	if !r.Readable(payload) {
		return false
	}
	r.cache.Apply(&r.batch)
	return true
}

func (r *truthRank) Restarted() { r.cache.Restarted(); r.file = nil }
func (r *truthRank) Continued() { r.cache.Confirmed() }

func (r *truthRank) Lost() {
	switch {
	case !r.lists:
		r.cache.Lost()
	case r.flaky && rapid.Bool().Draw(r.e.rt, "no list"):
		r.cache.Hide()
	default:
		r.cache.Listed(r.e.list())
	}
}

// relist is a later attempt to get the list.
func (r *truthRank) relist() {
	if r.cache.WantsList() {
		r.cache.Listed(r.e.list())
	}
}

// deliver brings the delayed frames.
func (r *truthRank) deliver() {
	for _, f := range r.delayed {
		r.seq.Live(r.now, f.seq, f.payload)
		r.serve()
	}
	r.delayed = nil
	r.cache.CaughtUp()
	r.stream.Flush()
}

// serve lets the clock run until no replay is due or under way.
func (r *truthRank) serve() {
	for range 200 {
		if start, due := r.seq.Request(r.now); due && r.down {
			r.seq.ReplayFailed(r.now)
		} else if due {
			for n := max(start, uint64(max(0, len(r.e.history)-r.buffer))); n < uint64(len(r.e.history)) && r.seq.Replaying(); n++ {
				r.seq.Replayed(r.now, n, r.e.history[n])
			}
			r.seq.ReplayEnd(r.now)
		}
		if r.seq.CaughtUp() {
			return
		}
		r.now = r.seq.Wake()
		r.seq.Tick(r.now)
	}
	r.e.rt.Fatal("200 replays in a row")
}

// settle is a long silence after a last frame.
func (r *truthRank) settle() {
	r.delayed = append(r.delayed, r.next())
	r.deliver()
	r.silence(10)
}

func (r *truthRank) silence(seconds int) {
	for range seconds {
		r.now = r.now.Add(time.Second)
		r.seq.Tick(r.now)
		r.serve()
		r.cache.Tick()
	}
	r.relist()
	r.stream.Flush()
}

// restart is an engine that dies and comes back after some seconds. It has
// answered a replay in its life, so that its rank knows that it can.
func (r *truthRank) restart() {
	r.deliver()
	r.silence(6)
	r.down = true
	r.silence(6)
	r.down = false
	r.e.restart()
}

func (r *truthRank) next() frame {
	seq, payload := r.e.publish()
	return frame{seq: seq, payload: payload}
}

// check compares with the engine. Exact: everything, with counts. Otherwise what
// the stream claims must be there.
func (r *truthRank) check(exact bool) {
	want := make(map[residencytest.Pair]struct{})
	for b := range r.e.tree.Parent {
		if r.e.held[engineName(b)] > 0 {
			want[residencytest.Pair{Tier: kv.TierDevice, Hash: r.e.sequence(b)}] = struct{}{}
		}
	}
	set := r.rec.Resident()
	residencytest.Check(r.t, r.stream, set)
	for k := range set {
		if _, ok := want[k]; !ok {
			r.e.rt.Fatalf("block %x is claimed and is not there", uint64(k.Hash))
		}
	}
	health := r.stream.Status().Health
	if health == kvevent.HealthExact && len(set) != len(want) {
		r.e.rt.Fatalf("an exact stream has %d blocks of %d", len(set), len(want))
	}
	if !exact {
		return
	}
	if health != kvevent.HealthExact || r.losses.Lost.Load() > 0 {
		r.e.rt.Fatalf("health %s, %d losses, dropped %v", health, r.losses.Lost.Load(), r.count.Dropped())
	}
	for h, n := range r.e.held {
		slot, ok := r.cache.known.Find(uint64(h))
		if !ok || int(r.cache.known.At(slot).refs.Of(kv.TierDevice)) != n {
			r.e.rt.Fatalf("engine block %d: known %t, counts differ from %d", h, ok, n)
		}
	}
}

// TestStreamEqualsTheEngine: whatever an engine does, however its link loses,
// repeats and delays frames, whenever the engine or the agent restarts and however
// old the checkpoint is: after a silence the stream holds what the engine holds,
// if the history reaches back far enough. If it does not, the stream claims no
// block that is not there, and says exact only when it is.
func TestStreamEqualsTheEngine(t *testing.T) {
	for name, r := range map[string]truthRank{
		"long history":           {buffer: 10000, replays: true},
		"short history":          {buffer: 3, replays: true},
		"short history and list": {buffer: 3, replays: true, lists: true},
		"no replay":              {},
		"list without replay":    {lists: true},
		"list comes late":        {lists: true, flaky: true},
		"late list, replay":      {buffer: 3, replays: true, lists: true, flaky: true},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				r := r
				r.t, r.e, r.now = t, newTruthEngine(rt), time.Unix(1000, 0)
				r.start()
				r.live(rt)
				r.settle()
				r.check(r.buffer > 1000)
				if t.Failed() {
					rt.FailNow()
				}
			})
		})
	}
}

// live is the life of one engine and agent. An engine without replay does not
// restart: what its successor says cannot always be told from its own words. Nor
// does one whose history is short, when its agent is away or cannot hear it.
func (r *truthRank) live(rt *rapid.T) {
	canRestart := r.buffer > 1000
	for range rapid.IntRange(1, 60).Draw(rt, "steps") {
		switch rapid.IntRange(0, 19).Draw(rt, "step") {
		case 0:
			r.e.clear()
		case 1:
			if canRestart {
				r.restart()
			}
		case 2:
			r.checkpoint()
		case 3: // kill -9 and start again
			r.delayed = nil
			r.start()
			r.serve()
		case 4, 5:
			// How many copies there are, a list does not say.
			r.e.store(!r.lists)
		case 6, 7, 8, 9:
			r.e.remove()
		case 10:
			r.now = r.now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(rt, "ms")) * time.Millisecond)
			r.seq.Tick(r.now)
			r.serve()
		default:
			r.e.store(false)
		}
		if len(r.e.step) == 0 {
			continue
		}
		f := r.next()
		switch rapid.IntRange(0, 9).Draw(rt, "link") {
		case 0, 1: // lost
		case 2: // twice
			r.delayed = append(r.delayed, f, f)
		default:
			r.delayed = append(r.delayed, f)
		}
		if rapid.Bool().Draw(rt, "deliver") {
			r.deliver()
		}
	}
}

// frame is a live message.
type frame struct {
	seq     uint64
	payload []byte
}
