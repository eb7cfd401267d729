package zmqsink

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

// queueBlocks is how many blocks a queue has room for.
const queueBlocks = 256 << 10

const (
	device = kv.TierDevice
	host   = kv.TierHost
)

func TestSubscriberThatComesLateLearnsTheWholeState(t *testing.T) {
	s := newStream()
	sink := startSink(t, s, nil)
	s.store(device, 1, 3)
	s.store(host, 1, 2)
	s.remove(device, 3)
	waittest.Until(t, "the events are sent", func() bool { return sink.Stats().Said == 2 })
	sub := subscribe(t, sink.Endpoint())
	sub.untilHolds(place{1, device}, place{2, device}, place{1, host}, place{2, host})
	s.store(host, 3, 3)
	s.remove(device, 2, 1)
	sub.untilHolds(place{1, host}, place{2, host}, place{3, host})
	sink.Close()
	if st := sink.Stats(); st.Reannounced != 1 || st.Subscribers != 1 || st.Next != st.Batches || st.Gaps+st.Foreign+st.Dropped != 0 {
		t.Errorf("counted %+v", st)
	}
}

// A consumer may have listened to a process before this one, on the same port: what
// it knows from there, nobody would ever remove.
func TestFirstSubscriberIsToldThatNothingIsThere(t *testing.T) {
	sink := startSink(t, newStream(), nil)
	sub := subscribe(t, sink.Endpoint())
	sub.held[place{99, device}] = struct{}{}
	sub.untilHolds()
}

func TestSecondSubscriberIsHeardAndTheFirstStaysRight(t *testing.T) {
	s := newStream()
	sink := startSink(t, s, nil)
	first := subscribe(t, sink.Endpoint())
	first.untilHolds()
	s.store(device, 1, 2)
	first.untilHolds(place{1, device}, place{2, device})
	second := subscribe(t, sink.Endpoint())
	second.untilHolds(place{1, device}, place{2, device})
	s.store(device, 3, 3)
	want := []place{{1, device}, {2, device}, {3, device}}
	first.untilHolds(want...)
	second.untilHolds(want...)
	if first.seqs[len(first.seqs)-1] != second.seqs[len(second.seqs)-1] {
		t.Errorf("the last batches are %v and %v", first.seqs, second.seqs)
	}
	second.leave()
	waittest.Until(t, "one subscriber is left", func() bool { return sink.Stats().Subscribers == 1 })
	if st := sink.Stats(); st.Subscriptions != 2 || st.Reannounced != 2 {
		t.Errorf("counted %+v", st)
	}
}

// The state is large, and many may come at once.
func TestManySubscribersShareOneAnnouncement(t *testing.T) {
	s := newStream()
	sink := startSink(t, s, func(o *Options) { o.ReannounceEvery = time.Hour })
	first := subscribe(t, sink.Endpoint())
	first.untilHolds()
	for i := range uint64(5) {
		subscribe(t, sink.Endpoint())
		waittest.Until(t, "the subscription", func() bool { return sink.Stats().Subscriptions == i+2 })
	}
	s.store(device, 1, 1)
	first.untilHolds(place{1, device})
	if n := sink.Stats().Reannounced; n != 1 {
		t.Errorf("announced %d times, want 1", n)
	}
}

// A restarted agent announces its pool's blocks before subscribers are back. Their old state
// is wrong until they get the new one.
func TestStateAnnouncedToNobodyDelaysNoSubscriber(t *testing.T) {
	s := newStream()
	sink := startSink(t, s, func(o *Options) { o.ReannounceEvery = time.Hour })
	s.held[place{1, host}] = struct{}{}
	sink.StateJoined()
	waittest.Until(t, "the state is announced", func() bool { return sink.Stats().Reannounced == 1 })
	sub := subscribe(t, sink.Endpoint())
	sub.untilHolds(place{1, host})
	subscribe(t, sink.Endpoint())
	waittest.Until(t, "the second subscription", func() bool { return sink.Stats().Subscriptions == 2 })
	s.store(device, 1, 1)
	sub.untilHolds(place{1, host}, place{1, device})
	if n := sink.Stats().Reannounced; n != 2 {
		t.Errorf("announced %d times, want 2", n)
	}
}

func TestReplayHasEveryBatchThatIsHeld(t *testing.T) {
	s := newStream()
	sink := startSink(t, s, func(o *Options) { o.Buffer = 3 })
	sub := subscribe(t, sink.Endpoint())
	sub.untilHolds()
	if seqs, _ := sub.replay(sink.ReplayEndpoint(), 0); fmt.Sprint(seqs) != "[0]" {
		t.Errorf("replayed %v, want [0]", seqs)
	}
	live := make(map[uint64][]byte)
	for h := kv.SequenceHash(1); h <= 5; h++ {
		s.store(device, h, h)
		seq, payload := sub.read()
		live[seq] = bytes.Clone(payload)
	}
	for start, want := range map[uint64]string{0: "[3 4 5]", 4: "[4 5]", 6: "[]", replayEnd: "[]"} {
		seqs, payloads := sub.replay(sink.ReplayEndpoint(), start)
		if fmt.Sprint(seqs) != want {
			t.Errorf("replay from %d has %v, want %s", start, seqs, want)
		}
		for i, seq := range seqs {
			if !bytes.Equal(payloads[i], live[seq]) {
				t.Errorf("batch %d is not what was sent live", seq)
			}
		}
	}
	if st := sink.Stats(); st.Replays != 5 || st.Replayed != 6 {
		t.Errorf("counted %+v", st)
	}
}

func TestRequestsOfAnotherFormAreIgnoredAndCounted(t *testing.T) {
	sink := startSink(t, newStream(), nil)
	sub := subscribe(t, sink.Endpoint())
	d := sub.socket(zmq.DEALER)
	defer func() { _ = d.Close() }()
	if err := d.Connect(sink.ReplayEndpoint()); err != nil {
		t.Fatal(err)
	}
	for _, parts := range [][]any{{sequenceFrame(0)}, {"", "", sequenceFrame(0)}, {"", "short"}, {"x", sequenceFrame(0)}} {
		if _, err := d.SendMessage(parts...); err != nil {
			t.Fatal(err)
		}
	}
	waittest.Until(t, "four bad requests", func() bool { return sink.Stats().BadRequests == 4 })
	if seqs, _ := sub.replay(sink.ReplayEndpoint(), 100); len(seqs) != 0 {
		t.Errorf("replayed %v", seqs)
	}
}

// Whatever the queue cannot hold is made up for by the whole state.
func TestOverflowEndsWithTheWholeState(t *testing.T) {
	s := newStream()
	sink := startSink(t, s, nil)
	sub := subscribe(t, sink.Endpoint())
	sub.untilHolds()
	for sink.Stats().Overflows == 0 {
		// One event that is too large for what the goroutine may have left of the queue.
		s.store(host, 1, queueBlocks+1)
		s.remove(host, queueBlocks, queueBlocks+1)
	}
	s.store(device, 1, 1)
	sub.until(func() bool { _, there := sub.held[place{1, device}]; return there && len(sub.held) == queueBlocks })
	dropped := sink.Stats().Dropped
	if dropped == 0 {
		t.Error("nothing was dropped")
	}
	s.store(device, 2, 2)
	sub.until(func() bool { _, there := sub.held[place{2, device}]; return there })
	if st := sink.Stats(); st.Dropped != dropped {
		t.Errorf("events are dropped still: %+v", st)
	}
}

func TestHoleInTheSourcesEventsEndsWithTheWholeState(t *testing.T) {
	s := newStream()
	sink := startSink(t, s, nil)
	sub := subscribe(t, sink.Endpoint())
	sub.untilHolds()
	s.silent = true
	s.store(device, 1, 2)
	s.silent = false
	s.held[place{3, device}], s.held[place{1, host}] = struct{}{}, struct{}{}
	s.last += 2
	third, fourth := chainEvent(device, 3, 3), chainEvent(host, 1, 1)
	third.ID, fourth.ID = 2, 3
	sink.Publish([]kvevent.RouterEvent{third, fourth})
	sub.untilHolds(place{1, device}, place{2, device}, place{3, device}, place{1, host})
	if st := sink.Stats(); st.Gaps != 1 || st.Dropped != 2 {
		t.Errorf("counted %+v", st)
	}
}

func TestStateThatGrowsWithoutEventsIsSaidOnce(t *testing.T) {
	s := newStream()
	sink := startSink(t, s, func(o *Options) { o.ReannounceEvery = 1 })
	sub := subscribe(t, sink.Endpoint())
	sub.untilHolds()
	s.held[place{1, host}] = struct{}{}
	sink.StateJoined()
	sub.untilHolds(place{1, host})
	want := []place{{1, host}}
	for h := kv.SequenceHash(2); h < 10; h++ {
		s.store(host, h, h)
		want = append(want, place{h, host})
		sub.untilHolds(want...)
	}
	if n := sink.Stats().Reannounced; n != 2 {
		t.Errorf("announced %d times, want 2", n)
	}
}

// A stream has pending events when it is asked for its state: they are in it, and in
// the queue too.
func TestEventsThatAreInTheStateAreNotAppliedAgain(t *testing.T) {
	s := newStream()
	sink := startSink(t, s, nil)
	s.store(device, 1, 3)
	waittest.Until(t, "the blocks are said", func() bool { return sink.Stats().Said == 3 })
	s.pending = &place{3, device}
	sub := subscribe(t, sink.Endpoint())
	sub.untilHolds(place{1, device}, place{2, device})
	s.store(host, 1, 1)
	sub.untilHolds(place{1, device}, place{2, device}, place{1, host})
	if st := sink.Stats(); st.IgnoredRemoves != 0 || st.Gaps != 0 {
		t.Errorf("counted %+v", st)
	}
}

func TestCloseSendsWhatIsQueuedAndRefusesTheRest(t *testing.T) {
	s := newStream()
	sink := startSink(t, s, func(o *Options) { o.linger = time.Hour })
	sub := newSubscriber(t)
	// So little that most batches wait in the sink's own socket when it closes.
	if err := errors.Join(sub.sub.SetRcvhwm(1), sub.sub.SetRcvbuf(4096)); err != nil {
		t.Fatal(err)
	}
	sub.connect(sink.Endpoint())
	sub.untilHolds()
	const n, run = 250_000, 500
	for h := kv.SequenceHash(1); h < n; h += run {
		s.store(device, h, h+run-1)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		sink.Close()
	}()
	sub.until(func() bool { return len(sub.held) == n })
	<-closed
	sink.Close()
	s.store(device, n+1, n+1)
	sink.Raw([]byte("late"))
	sink.StateJoined()
	if st := sink.Stats(); st.AfterClose != 2 || st.Dropped != 0 {
		t.Errorf("counted %+v", st)
	}
}

func TestEventsOfAnotherOwnerAreNotSent(t *testing.T) {
	s := newStream()
	sink := startSink(t, s, nil)
	e := chainEvent(device, 1, 1)
	e.Owner.Rank, e.ID = 0, 1
	sink.Publish([]kvevent.RouterEvent{e})
	s.store(device, 1, 1)
	waittest.Until(t, "the right event", func() bool { return sink.Stats().Said == 1 })
	if n := sink.Stats().Foreign; n != 1 {
		t.Errorf("%d foreign events, want 1", n)
	}
}

func TestPassthroughSendsTheEnginesOwnPayloads(t *testing.T) {
	sink, err := New(Options{Bind: "tcp://127.0.0.1:*", Worker: testWorker, BlockSize: 4, Topic: "kv"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	sub := subscribe(t, sink.Endpoint())
	waittest.Until(t, "the subscription", func() bool { return sink.Stats().Subscribers == 1 })
	for i := range 3 {
		sink.Raw(fmt.Appendf(nil, "payload %d", i))
	}
	for i := range uint64(3) {
		if seq, payload := sub.read(); seq != i || string(payload) != fmt.Sprintf("payload %d", i) {
			t.Errorf("batch %d is %q", seq, payload)
		}
	}
	sink.Raw(make([]byte, maxRawBytes+1))
	sink.Raw([]byte("after the hole"))
	waittest.Until(t, "the last payload", func() bool { return sink.Stats().Next == 5 })
	if st := sink.Stats(); st.DroppedRaw != 1 || st.Raw != 4 || st.Reannounced != 0 {
		t.Errorf("counted %+v", st)
	}
	if seqs, _ := sub.replay(sink.ReplayEndpoint(), 2); fmt.Sprint(seqs) != "[2 4]" {
		t.Errorf("replayed %v, want [2 4]", seqs)
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	good := Options{Bind: "tcp://127.0.0.1:*", Worker: testWorker, BlockSize: 4}
	taken := startSink(t, newStream(), nil).Endpoint()
	for want, change := range map[string]func(*Options){
		"want tcp://HOST:PORT":     func(o *Options) { o.Bind = "udp://127.0.0.1:1" },
		"want a port from 1":       func(o *Options) { o.Bind = "tcp://127.0.0.1:65000" },
		"want at least 1 token":    func(o *Options) { o.BlockSize = 0 },
		"want another address":     func(o *Options) { o.Bind, o.ReplayBind = "tcp://*:5557", "tcp://*:5557" },
		"buffer -1":                func(o *Options) { o.Buffer = -1 },
		"hwm 2000000":              func(o *Options) { o.HWM = 2000000 },
		"reannounce every -1s":     func(o *Options) { o.ReannounceEvery = -time.Second },
		"address already in use":   func(o *Options) { o.Bind, o.ReplayBind = taken, good.Bind },
		"the source is worker 7/3": func(o *Options) { o.Worker.Rank = 0 },
	} {
		o := good
		change(&o)
		sink, err := New(o, newStream(), numbered{})
		if err == nil {
			sink.Close()
		}
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(want)) {
			t.Errorf("%+v: error %v, want one that says %q", o, err, want)
		}
	}
}

// A batch waits for a subscriber without room for roomTimeout, unless a test says otherwise.
func TestABatchWaitsForRoom(t *testing.T) {
	o, err := (Options{Bind: "ipc://unused", Worker: testWorker, BlockSize: 4}).complete()
	if err != nil {
		t.Fatal(err)
	}
	if o.giveUp(0, roomTimeout-1) || !o.giveUp(0, roomTimeout) {
		t.Errorf("a batch does not wait for %v", roomTimeout)
	}
}

func TestReplayPortIsAThousandAboveTheEventsPort(t *testing.T) {
	for bind, want := range map[string]string{
		"tcp://*:6557": "tcp://*:7557", "tcp://[::1]:1": "tcp://[::1]:1001", "ipc:///tmp/x": "ipc:///tmp/x-replay", "tcp://h:0": "tcp://h:0",
	} {
		if got, err := replayOf(bind); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", bind, got, err, want)
		}
	}
}
