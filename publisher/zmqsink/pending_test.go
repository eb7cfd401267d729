package zmqsink

import (
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

// chainOf makes the tokens of blocks 1 to n.
func chainOf(n kv.SequenceHash) knownTokens {
	tokens := make(knownTokens)
	for h := kv.SequenceHash(1); h <= n; h++ {
		tokens[h] = block(uint32(h), 2, 3, 4)
	}
	return tokens
}

// A request that finds all its blocks stores none.
func TestBlocksFromBeforeARestartAreSaidInTheEnd(t *testing.T) {
	const n = 3 * turnSteps
	tokens := knownTokens{}
	s := newRecordedEncoder(tokens)
	for h := kv.SequenceHash(1); h <= n; h++ {
		e := storedIn(kv.TierHost, h-1, h)
		e.HasParent = h%1000 != 1
		s.say(e)
	}
	s.stateAnnounced(time.Now())
	maps.Copy(tokens, chainOf(n))
	turns := 0
	for ; turns <= n/turnSweep && !s.queue.due().IsZero(); turns++ {
		before := s.counters.retries.Load()
		s.retry(time.Now())
		if asked := s.counters.retries.Load() - before; asked > turnSteps {
			t.Fatalf("a turn asked for %d blocks", asked)
		}
	}
	if s.announced != n || turns > n/turnSweep {
		t.Errorf("%d blocks are known after %d turns", s.announced, turns)
	}
}

func TestBlocksThatNothingIsKnownOfCostLittle(t *testing.T) {
	tokens := chainOf(2000)
	delete(tokens, 1)
	s := newRecordedEncoder(tokens)
	for h := kv.SequenceHash(1); h <= 2000; h++ {
		s.say(storedIn(kv.TierDevice, h-1, h))
	}
	if n := len(s.queue.hastened); n != 2000 {
		t.Fatalf("%d blocks are hastened", n)
	}
	s.retry(time.Now())
	if n := s.counters.retries.Load(); n != 1 || s.announced != 0 {
		t.Errorf("%d questions about one block, %d are known", n, s.announced)
	}
	again := s.queue.last.Add(retryEvery)
	if due := s.queue.due(); !due.Equal(again) {
		t.Errorf("the next turn is at %v, want %v", due, again)
	}
}

func TestWhatThereIsNoRoomForIsCounted(t *testing.T) {
	s := newRecordedEncoder(knownTokens{})
	for h := kv.SequenceHash(1); h <= maxHastened+3; h++ {
		s.say(storedIn(kv.TierDevice, 0, h))
	}
	if n := s.counters.unwanted.Load(); n != 3 || len(s.queue.hastened) != maxHastened {
		t.Errorf("%d are hastened, %d beyond them", len(s.queue.hastened), n)
	}
	s.queue.blocks = s.queue.blocks[:cap(s.queue.blocks)]
	s.queue.blocks = append(s.queue.blocks, make([]pendingBlock, maxPending-len(s.queue.blocks))...)
	s.say(storedIn(kv.TierDevice, 0, 1<<40))
	if n := s.counters.unkept.Load(); n != 1 || s.states[1<<40] != (blockState{pending: 1, root: true}) {
		t.Errorf("%d are not kept; it is %+v", n, s.states[1<<40])
	}
	s.say(removedFrom(kv.TierDevice, 1<<40))
	if _, there := s.states[1<<40]; there {
		t.Error("a block that was not kept stays")
	}
}

// lateTokens knows, of the chain that numbered knows, the blocks up to one.
type lateTokens struct {
	numbered
	upTo atomic.Uint64
}

func (l *lateTokens) Describe(h kv.SequenceHash, e *engineevent.Event) bool {
	return uint64(h) <= l.upTo.Load() && l.numbered.Describe(h, e)
}

func TestSubscriberLearnsAHotPrefixAfterARestart(t *testing.T) {
	source, tokens := newStream(), &lateTokens{}
	source.held[place{1, device}], source.held[place{2, device}] = struct{}{}, struct{}{}
	o := Options{Bind: "tcp://127.0.0.1:*", Worker: testWorker, BlockSize: 4, Topic: "kv"}
	sink, err := New(o, source, tokens)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	source.sink = sink
	sub := subscribe(t, sink.Endpoint())
	sub.untilHolds()
	waittest.Until(t, "two blocks are left out", func() bool { return sink.Stats().Left == 2 })
	var want []place
	for h := kv.SequenceHash(1); h <= 20; h++ {
		tokens.upTo.Store(uint64(h))
		want = append(want, place{h, device})
		if h > 2 {
			source.store(device, h, h)
		}
	}
	sub.untilHolds(want...)
	if st := sink.Stats(); st.Reannounced != 1 || st.Left != 0 || st.Recovered < 2 {
		t.Errorf("counted %+v", st)
	}
}

// listener applies batches and fails when they contradict one another.
type listener struct {
	t       *rapid.T
	held    map[place]struct{}
	decoder engineevent.Decoder
	batch   engineevent.Batch
}

func (l *listener) hear(payload []byte) {
	if err := l.decoder.Decode(payload, &l.batch); err != nil || len(l.batch.Bad) > 0 {
		l.t.Fatalf("batch %x: %v %v", payload, err, l.batch.Bad)
	}
	for i := range l.batch.Events {
		e := &l.batch.Events[i]
		tier, _ := kv.TierFromMedium(e.Medium)
		if e.Kind == kvevent.Cleared {
			clear(l.held)
		}
		for j, h := range e.BlockHashes {
			p := place{kv.SequenceHash(h), tier}
			_, there := l.held[p]
			if there != (e.Kind == kvevent.Removed) {
				l.t.Fatalf("%v: event %d, and it is held: %v", p, e.Kind, there)
			}
			if e.Kind == kvevent.Removed {
				delete(l.held, p)
				continue
			}
			parent, hasParent := e.Parent, e.HasParent
			if j > 0 {
				parent, hasParent = e.BlockHashes[j-1], true
			}
			if hasParent && !l.holds(kv.SequenceHash(parent)) {
				l.t.Fatalf("%v is stored behind %d, which is not held", p, parent)
			}
			l.held[p] = struct{}{}
		}
	}
}

func (l *listener) holds(h kv.SequenceHash) bool {
	return slices.ContainsFunc(kv.Tiers[:], func(t kv.Tier) bool {
		_, there := l.held[place{h, t}]
		return there
	})
}

// leftModel is a source whose blocks form a tree, block h behind block h/2, and whose
// tokens come at any time.
type leftModel struct {
	t        *rapid.T
	encoder  *recordedEncoder
	tokens   knownTokens
	held     map[place]struct{}
	listener listener
}

func (m *leftModel) apply(events ...kvevent.RouterEvent) {
	m.encoder.say(events...)
	m.heard()
}

func (m *leftModel) heard() {
	for _, p := range m.encoder.payloads {
		m.listener.hear(p)
	}
	m.encoder.payloads = nil
}

func (m *leftModel) anyTier() kv.Tier { return rapid.SampledFrom(kv.Tiers[:]).Draw(m.t, "tier") }

func (m *leftModel) anyBlock() kv.SequenceHash {
	return kv.SequenceHash(rapid.IntRange(1, 7).Draw(m.t, "block"))
}

func (m *leftModel) store(h kv.SequenceHash, tier kv.Tier, run int) {
	first := h
	var hashes []kv.SequenceHash
	for range run {
		hashes = append(hashes, h)
		m.held[place{h, tier}] = struct{}{}
		h *= 2
	}
	m.apply(storedIn(tier, first/2, hashes...))
}

func (m *leftModel) remove(h kv.SequenceHash, tier kv.Tier) {
	delete(m.held, place{h, tier})
	m.apply(removedFrom(tier, h))
}

// arrive makes the tokens of h known, and of all before it, as a request does.
func (m *leftModel) arrive(h kv.SequenceHash) {
	for ; h > 0; h /= 2 {
		m.tokens[h] = block(uint32(h), 2, 3, 4)
	}
}

// restate is what a sink does for a subscriber: parents first.
func (m *leftModel) restate() {
	m.encoder.clear()
	for _, p := range slices.SortedFunc(maps.Keys(m.held), func(a, b place) int { return int(a.hash) - int(b.hash) }) {
		m.apply(storedIn(p.tier, p.hash/2, p.hash))
	}
	m.encoder.stateAnnounced(time.Now())
}

// settled checks what holds after as many turns as there may be blocks: nothing is
// left that can be said.
func (m *leftModel) settled() {
	for range 50 {
		m.encoder.retry(time.Now())
	}
	m.heard()
	for p := range m.held {
		_, said := m.listener.held[p]
		_, known := m.tokens[p.hash]
		sayable := known && (p.hash == 1 || m.listener.holds(p.hash/2))
		if sayable && !said {
			m.t.Fatalf("%v can be said and was not; its state is %+v", p, m.encoder.states[p.hash])
		}
	}
	left := make(map[kv.SequenceHash]struct{})
	for p := range m.held {
		if _, said := m.listener.held[p]; !said {
			left[p.hash] = struct{}{}
		}
	}
	if n := m.encoder.counters.left.Load(); int(n) != len(left) {
		m.t.Fatalf("%d are left, want %d", n, len(left))
	}
}

// check holds at any time.
func (m *leftModel) check(t *rapid.T) {
	for p := range m.listener.held {
		if _, there := m.held[p]; !there {
			t.Fatalf("%v was said and is gone", p)
		}
	}
	for i, b := range m.encoder.queue.blocks {
		if in := m.encoder.states[b.hash]; int(in.queued) != i+1 || in.pending == 0 {
			t.Fatalf("block %d at place %d is %+v", b.hash, i+1, in)
		}
	}
}

// Whatever is stored and removed while the tokens come, subscribers hear nothing that
// contradicts itself, and in the end everything that can be said.
func TestEncoderModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &leftModel{t: t, tokens: knownTokens{}, held: make(map[place]struct{})}
		m.encoder = newRecordedEncoder(m.tokens)
		m.listener = listener{t: t, held: make(map[place]struct{})}
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				m.store(m.anyBlock(), m.anyTier(), rapid.IntRange(1, 3).Draw(t, "run"))
			},
			"remove":  func(*rapid.T) { m.remove(m.anyBlock(), m.anyTier()) },
			"tokens":  func(*rapid.T) { m.arrive(m.anyBlock()) },
			"forget":  func(*rapid.T) { delete(m.tokens, m.anyBlock()) },
			"retry":   func(*rapid.T) { m.encoder.retry(time.Now()); m.heard() },
			"settle":  func(*rapid.T) { m.settled() },
			"restate": func(*rapid.T) { m.restate() },
			"clear": func(*rapid.T) {
				clear(m.held)
				m.apply(kvevent.RouterEvent{Kind: kvevent.Cleared})
			},
			"": m.check,
		})
		m.settled()
	})
}
