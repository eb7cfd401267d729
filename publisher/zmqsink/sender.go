package zmqsink

import (
	"bytes"
	"encoding/binary"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

// replayEnd is the number of the message that ends a replay: -1 as vLLM packs it.
const replayEnd = ^uint64(0)

// sender is the sending goroutine. Its fields belong to that goroutine alone.
type sender struct {
	sink    *Sink
	sockets *sockets
	count   *counters
	encoder encoder
	// history holds the payloads of the last batches; nil is a batch that was lost or is
	// too large.
	history *publisher.Journal[[]byte]
	// events, raw and payload are scratch space.
	events  []kvevent.RouterEvent
	raw     [][]byte
	payload []byte
	// stateDue: the whole state has to be announced, as soon as earliest allows. It was last
	// announced at lastState.
	stateDue  bool
	lastState time.Time
	// unheard: there was no subscriber at lastState.
	unheard bool
	slow    slowSubscribers
}

// newSender returns the sender of sink s. tokens is nil in passthrough.
func newSender(s *Sink, tokens Tokens) *sender {
	n := &sender{
		sink: s, sockets: s.sockets, count: &s.count,
		history: publisher.NewJournal(s.opt.Buffer, maxHistoryBytes, func(payload *[]byte) int { return len(*payload) }),
	}
	n.encoder = encoder{
		rank: s.opt.Worker.Rank, blockSize: s.opt.BlockSize, tokens: tokens, count: n.count,
		send: n.sendBatch, states: make(map[kv.SequenceHash]blockState), groups: newGroupEncoder(s.opt.Groups),
	}
	return n
}

// run is the sink's goroutine. Until the sink is closed it waits for a message of a peer, for
// queued events or for a timer, and then answers and sends what is due: queued events, the batch
// and state that slow subscribers missed, the whole state for new subscribers, and the pending
// blocks (their tokens were unknown).
func (n *sender) run() {
	defer close(n.sink.ended)
	defer n.sink.end()
	for {
		found, err := n.sockets.wait(n.wake())
		if err != nil {
			// libzmq itself has failed: no batch can be sent.
			n.count.sendErrors.Add(1)
			n.sink.opt.Log.Error("the ZMQ stream has ended: libzmq failed", zap.Stringer("owner", n.sink.owner), zap.Error(err))
			return
		}
		n.serve(found)
		if n.sendQueued() { // the sink is closing
			return
		}
		n.catchUp(time.Now())
		if n.stateDue && !n.slow.stalled && !time.Now().Before(n.earliest()) {
			n.announceState()
		}
		if retry := n.retryDue(); !retry.IsZero() && !time.Now().Before(retry) {
			n.encoder.retry(time.Now())
		}
	}
}

// serve reads and answers the messages of peers.
func (n *sender) serve(found found) {
	if found.replay {
		n.answerReplays()
	}
	if found.subscription {
		n.readSubscriptions()
	}
}

// wake returns when run must act although nothing arrives: the time of the next retry of pending
// blocks, catch-up of a slow subscriber, or announcement of the whole state; zero for none.
func (n *sender) wake() (at time.Time) {
	times := []time.Time{n.retryDue(), n.catchUpDue()}
	if n.stateDue && !n.slow.stalled { // a stalled sink announces its state after the catch-up
		times = append(times, n.earliest())
	}
	for _, t := range times {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// retryDue returns when to retry the pending blocks; zero is never. While events are
// missing, the pending blocks may be gone.
func (n *sender) retryDue() time.Time {
	if n.sink.inbox.Lost() {
		return time.Time{}
	}
	return n.encoder.queue.due()
}

// earliest returns when the whole state may be announced next. The first subscriber after an
// announcement to nobody does not wait: until then it believes what an earlier agent said.
func (n *sender) earliest() time.Time {
	if n.unheard && n.count.subscribers.Load() > 0 {
		return n.lastState
	}
	return n.lastState.Add(n.sink.opt.ReannounceEvery)
}

// sendQueued sends the queued payloads (of a passthrough) and events. closing reports that the sink
// is closing, and that these were the last. After lost events, or when the stream's state has
// grown without events (Begin says so), the whole state becomes due.
func (n *sender) sendQueued() (closing bool) {
	stateGrown := n.sink.inbox.Begin()
	closing = n.sink.closing.Load() // first: all that was queued before Close is sent
	n.raw = n.sink.raw.take(n.raw)
	for _, payload := range n.raw {
		if payload == nil { // payloads were dropped: subscribers see the unused number
			n.numbered(nil)
			continue
		}
		n.count.raw.Add(1)
		n.sendPayload(payload)
	}
	clear(n.raw)
	n.events = n.sink.inbox.TakeAll(n.events)
	for i := range n.events {
		n.encoder.apply(&n.events[i])
	}
	clear(n.events)
	n.encoder.flush()
	n.stateDue = n.stateDue || !n.sink.passthrough() && (stateGrown || n.sink.inbox.Lost())
	return closing
}

// announceState sends a clear and then the whole state, so that every subscriber has it. If events
// after the snapshot were dropped, the state stays due. unheard notes that nobody subscribes.
func (n *sender) announceState() {
	n.lastState, n.unheard = time.Now(), n.count.subscribers.Load() == 0
	events, last, _ := n.sink.src.Snapshot()
	n.stateDue = !n.sink.inbox.Resync(last)
	n.encoder.clear()
	for i := range events {
		n.encoder.apply(&events[i])
	}
	n.encoder.flush()
	n.encoder.stateAnnounced(n.lastState)
	n.slow.stateAnnounced(time.Now())
	n.count.reannounced.Add(1)
}

// sendBatch encodes and sends a batch of the encoder.
func (n *sender) sendBatch(b *engineevent.Batch) {
	n.payload = engineevent.AppendBatch(n.payload[:0], b)
	n.sendPayload(bytes.Clone(n.payload))
}

// sendPayload sends a payload under the next number and keeps it for replays. While the only
// subscriber does not read, the sink is stalled and sends nothing: the whole state follows.
func (n *sender) sendPayload(payload []byte) {
	seq := n.numbered(payload)
	if n.slow.stalled {
		n.count.missed.Add(1)
		return
	}
	if !n.trySend(seq, payload) {
		n.awaitRoom(seq, payload)
	}
}

// trySend sends a batch to all subscribers. It returns false when one of them has no
// room; then no subscriber got the batch.
func (n *sender) trySend(seq uint64, payload []byte) bool {
	err := n.sockets.publish([]byte(n.sink.opt.Topic), sequenceFrame(seq), payload)
	if isFull(err) {
		return false
	}
	n.sent(payload, err)
	return true
}

// sent counts a batch that was given to libzmq, or refused by it with err.
func (n *sender) sent(payload []byte, err error) {
	if err != nil {
		// Subscribers see by the numbers that a batch is missing.
		n.count.sendErrors.Add(1)
		return
	}
	n.count.batches.Add(1)
	n.count.bytes.Add(uint64(len(payload)))
}

// numbered gives a payload the next number and keeps it for replays; nil is a payload
// that was lost.
func (n *sender) numbered(payload []byte) (seq uint64) {
	_, seq = n.history.Held()
	if len(payload) > maxHistoryBytes {
		payload = nil
	}
	n.history.Append(seq, payload)
	n.count.next.Store(seq + 1)
	return seq
}

// readSubscriptions takes the waiting messages of the XPUB socket and counts the subscribers. A
// message is 1 for a subscription or 0 for its end, and a prefix of topics. A new subscriber
// knows nothing: unless the sink is a passthrough, which has no state, the state becomes due.
func (n *sender) readSubscriptions() {
	for {
		parts, ok := n.sockets.receive(n.sockets.pub)
		if !ok {
			return
		}
		if len(parts) != 1 || len(parts[0]) == 0 || !bytes.HasPrefix([]byte(n.sink.opt.Topic), parts[0][1:]) {
			continue // not a subscription to our topic
		}
		switch parts[0][0] {
		case 0:
			if n.count.subscribers.Load() > 0 {
				n.count.subscribers.Add(^uint64(0)) // minus one
			}
			if n.count.subscribers.Load() == 0 {
				n.slow.forget() // nobody is behind any more
			}
		case 1:
			n.count.subscriptions.Add(1)
			n.count.subscribers.Add(1)
			n.stateDue = !n.sink.passthrough()
		}
	}
}

// answerReplays answers every replay request that has arrived. A request has three frames: the
// peer's identity, an empty frame, and the number of the first batch. Other messages are counted
// and not answered, as in vLLM.
func (n *sender) answerReplays() {
	for {
		parts, ok := n.sockets.receive(n.sockets.router)
		if !ok {
			return
		}
		if len(parts) != 3 || len(parts[1]) != 0 || len(parts[2]) != 8 {
			n.count.badRequests.Add(1)
			continue
		}
		n.count.replays.Add(1)
		n.replay(parts[0], binary.BigEndian.Uint64(parts[2]))
	}
}

// replay sends a peer the batches from number start on that the history still holds, and then the
// end mark. The number of the first batch shows the peer that older ones are gone. An error ends
// the replay; the peer asks again.
func (n *sender) replay(peer []byte, start uint64) {
	for seq, payload := range n.history.From(start) {
		if *payload == nil { // lost, or too large to hold: the peer sees that the number is missing
			continue
		}
		if err := n.sockets.reply(peer, nil, []byte(n.sink.opt.Topic), sequenceFrame(seq), *payload); err != nil {
			n.count.sendErrors.Add(1)
			return
		}
		n.count.replayed.Add(1)
	}
	if err := n.sockets.reply(peer, nil, nil, sequenceFrame(replayEnd), nil); err != nil {
		n.count.sendErrors.Add(1)
	}
}

// sequenceFrame returns a batch's number on the wire.
func sequenceFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
