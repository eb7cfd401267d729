package zmqpub

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
)

// zmqTimeout bounds every wait for a frame.
const zmqTimeout = 30 * time.Second

// peer is the other side of a publisher: its sockets belong to the test.
type peer struct {
	t    *testing.T
	ctx  *zmq.Context
	sub  *zmq.Socket
	deal *zmq.Socket
}

func newTestPublisher(t *testing.T, o Options) *Publisher {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// newPeer connects to p and waits until its subscription has arrived: it
// publishes probes, from sequence number 0 on, until one comes through. next is
// the first number that is not a probe.
func newPeer(t *testing.T, p *Publisher) (peer *peer, next uint64) {
	t.Helper()
	peer = dialPeer(t, p)
	if err := peer.sub.SetRcvtimeo(20 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for n := range 500 {
		last := fmt.Sprintf("probe %d", n)
		p.Publish([]byte(last))
		msg, err := peer.sub.RecvMessageBytes(0)
		if err != nil {
			continue
		}
		if err := peer.sub.SetRcvtimeo(zmqTimeout); err != nil {
			t.Fatal(err)
		}
		// On a busy machine the first frame to arrive is not the last one sent.
		for string(msg[2]) != last {
			if msg, err = peer.sub.RecvMessageBytes(0); err != nil {
				t.Fatal(err)
			}
		}
		return peer, binary.BigEndian.Uint64(msg[1]) + 1
	}
	t.Fatal("no frame came through")
	return nil, 0
}

func dialPeer(t *testing.T, p *Publisher) *peer {
	t.Helper()
	ctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	ctx.SetRetryAfterEINTR(true)
	c := &peer{t: t, ctx: ctx}
	c.sub = c.connect(zmq.SUB, p.Events)
	c.deal = c.connect(zmq.DEALER, p.Replay)
	if err := c.sub.SetSubscribe(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.sub.Close()
		_ = c.deal.Close()
		_ = ctx.Term()
	})
	return c
}

func (c *peer) connect(kind zmq.Type, endpoint string) *zmq.Socket {
	c.t.Helper()
	s, err := c.ctx.NewSocket(kind)
	if err == nil {
		err = s.SetLinger(0)
	}
	if err == nil {
		err = s.SetRcvtimeo(zmqTimeout)
	}
	if err == nil {
		err = s.Connect(endpoint)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// live receives one live message.
func (c *peer) live() (topic string, seq uint64, payload string) {
	c.t.Helper()
	msg, err := c.sub.RecvMessageBytes(0)
	if err != nil || len(msg) != 3 || len(msg[1]) != 8 {
		c.t.Fatalf("live message %q: %v", msg, err)
	}
	return string(msg[0]), binary.BigEndian.Uint64(msg[1]), string(msg[2])
}

// replay asks for what comes from start on and returns "seq:payload" lines.
func (c *peer) replay(start uint64, topic string) (lines []string) {
	c.t.Helper()
	if _, err := c.deal.SendMessage("", sequenceFrame(start)); err != nil {
		c.t.Fatal(err)
	}
	for {
		msg, err := c.deal.RecvMessageBytes(0)
		if err != nil || len(msg) != 4 || len(msg[0]) != 0 || len(msg[2]) != 8 {
			c.t.Fatalf("replay message %q: %v", msg, err)
		}
		seq := binary.BigEndian.Uint64(msg[2])
		if seq == replayEnd {
			if len(msg[1]) != 0 || len(msg[3]) != 0 {
				c.t.Fatalf("end marker %q", msg)
			}
			return lines
		}
		if string(msg[1]) != topic {
			c.t.Fatalf("replayed topic %q, want %q", msg[1], topic)
		}
		lines = append(lines, fmt.Sprintf("%d:%s", seq, msg[3]))
	}
}

func publishNumbered(p *Publisher, first uint64, n int) {
	for i := range uint64(n) {
		p.Publish(fmt.Appendf(nil, "p%d", first+i))
	}
}

func numbered(first, end uint64) (lines []string) {
	for i := first; i < end; i++ {
		lines = append(lines, fmt.Sprintf("%d:p%d", i, i))
	}
	return lines
}

func TestPublisherNumbersFramesAndReplaysThem(t *testing.T) {
	p := newTestPublisher(t, Options{Topic: "kv@pod", BufferSteps: 10000})
	c, first := newPeer(t, p)
	publishNumbered(p, first, 5)
	for i := range uint64(5) {
		topic, seq, payload := c.live()
		if topic != "kv@pod" || seq != first+i || payload != fmt.Sprintf("p%d", first+i) {
			t.Errorf("frame %d: %q %d %q", i, topic, seq, payload)
		}
	}
	if got, want := c.replay(first+2, "kv@pod"), numbered(first+2, first+5); !slices.Equal(got, want) {
		t.Errorf("replay from the middle: %v, want %v", got, want)
	}
	if got := c.replay(first+5, "kv@pod"); len(got) != 0 {
		t.Errorf("replay of what has not happened: %v", got)
	}
	if !p.Idle() {
		t.Error("publisher is not idle after its last frame")
	}
}

func TestReplayBelowTheBufferGivesWhatIsLeft(t *testing.T) {
	p := newTestPublisher(t, Options{BufferSteps: 3})
	c, first := newPeer(t, p)
	publishNumbered(p, first, 8)
	for range 8 {
		c.live()
	}
	if got, want := c.replay(0, ""), numbered(first+5, first+8); !slices.Equal(got, want) {
		t.Errorf("replay from 0: %v, want %v", got, want)
	}
}

func TestReplayOfAWholeBufferIsNotCutShort(t *testing.T) {
	const n = 5000 // libzmq would drop what exceeds its default queue of 1000
	p := newTestPublisher(t, Options{BufferSteps: n})
	c, first := newPeer(t, p)
	publishNumbered(p, first, n)
	for range n {
		c.live()
	}
	if got, want := c.replay(0, ""), numbered(first, first+n); !slices.Equal(got, want) {
		t.Errorf("%d batches replayed, want %d", len(got), len(want))
	}
}

func TestMalformedReplayRequestsAreIgnoredAndCounted(t *testing.T) {
	p := newTestPublisher(t, Options{BufferSteps: 3})
	c, first := newPeer(t, p)
	publishNumbered(p, first, 1)
	c.live()
	for _, bad := range [][]any{
		{sequenceFrame(0)}, {"", "short"}, {"x", sequenceFrame(0)}, {"", sequenceFrame(0), "more"}, {""},
	} {
		if _, err := c.deal.SendMessage(bad...); err != nil {
			t.Fatal(err)
		}
	}
	// Requests of one peer are answered in order: the first answer is to this one.
	if got, want := c.replay(first, ""), numbered(first, first+1); !slices.Equal(got, want) {
		t.Errorf("replay after bad requests: %v, want %v", got, want)
	}
	if n := p.Stats().ReplaysIgnored; n != 5 {
		t.Errorf("%d requests ignored, want 5", n)
	}
}

func TestDroppedFramesAreMissingLiveAndPresentInTheReplay(t *testing.T) {
	p := newTestPublisher(t, Options{BufferSteps: 100, Drop: map[uint64]bool{1001: true}})
	p.next = 1000 // before anything is published: the probes then end above 1001
	c, first := newPeer(t, p)
	if first < 1002 {
		publishNumbered(p, first, 3)
		if _, seq, _ := c.live(); seq != 1002 {
			t.Errorf("frame after 1000 is %d, want 1002", seq)
		}
	}
	if n := p.Stats().FramesDropped; first >= 1002 && n != 1 {
		t.Errorf("%d frames dropped, want 1", n)
	}
	got := c.replay(1001, "")
	if len(got) == 0 || got[0][:5] != "1001:" {
		t.Errorf("replay from the dropped frame: %v", got)
	}
}

func TestChosenDropsAreEarlyNeverFirstAndTheSameForASeed(t *testing.T) {
	for seed := range uint64(50) {
		d := ChooseDrops(3, seed, 7)
		if len(d) != 3 || d[0] {
			t.Errorf("seed %d: %v", seed, d)
		}
		for n := range d {
			if n > 3*dropSpread {
				t.Errorf("seed %d drops frame %d, which may never come", seed, n)
			}
			if !ChooseDrops(3, seed, 7)[n] {
				t.Errorf("seed %d chose differently the second time", seed)
			}
		}
	}
}

func TestClosedPublisherRefusesAndClosesOnce(t *testing.T) {
	p := newTestPublisher(t, Options{BufferSteps: 3})
	p.Close()
	p.Close()
	for range 2 * publishQueue {
		if !p.Publish(nil) {
			return
		}
	}
	t.Error("a closed publisher takes batches")
}
