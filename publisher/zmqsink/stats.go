package zmqsink

import "sync/atomic"

// Stats are a Sink's counters since it was made, and some gauges.
type Stats struct {
	// Batches, Events, Blocks and Bytes of payload were sent. Raw of the batches are an
	// engine's own; their events are not counted.
	Batches uint64 `json:"batches"`
	Events  uint64 `json:"events"`
	Blocks  uint64 `json:"blocks"`
	Bytes   uint64 `json:"bytes"`
	Raw     uint64 `json:"raw"`
	// Subscriptions have come; Subscribers are there now.
	Subscriptions uint64 `json:"subscriptions"`
	Subscribers   uint64 `json:"subscribers" metric:",gauge"`
	// Reannounced counts announcements of the whole state, Overflows how often the queue
	// was full, Gaps how often events of the source were missing.
	Reannounced uint64 `json:"reannounced"`
	Overflows   uint64 `json:"overflows"`
	Gaps        uint64 `json:"gaps"`
	// Dropped events were not sent, because the queue was full or events before them were
	// missing. The whole state stands for them. DroppedRaw payloads were lost; a gap in
	// the numbers shows where.
	Dropped    uint64 `json:"dropped"`
	DroppedRaw uint64 `json:"dropped_raw"`
	// Held batches waited because a subscriber had no room. Missed batches did not reach a
	// subscriber that had no room for too long.
	Held   uint64 `json:"held"`
	Missed uint64 `json:"missed"`
	// UnknownTokens blocks became pending because their tokens are unknown or are not those
	// of a whole block, Orphans because their parent was not announced. IgnoredRemoves are
	// removals of blocks that were not announced.
	UnknownTokens  uint64 `json:"unknown_tokens"`
	Orphans        uint64 `json:"orphans"`
	IgnoredRemoves uint64 `json:"ignored_removes"`
	// Retries are questions for the tokens of pending blocks, and Recovered blocks were
	// announced after one. Unkept blocks found no room among the pending blocks. Unwanted
	// blocks found no room to come first in the next turn; the sweep reaches them.
	Retries   uint64 `json:"retries"`
	Recovered uint64 `json:"recovered"`
	Unkept    uint64 `json:"unkept"`
	Unwanted  uint64 `json:"unwanted"`
	// Foreign events belong to another owner. AfterClose events and payloads came too late.
	// Neither are sent.
	Foreign    uint64 `json:"foreign"`
	AfterClose uint64 `json:"after_close"`
	// Replays are answered requests, Replayed the batches in the answers, BadRequests
	// messages that are not requests.
	Replays     uint64 `json:"replays"`
	Replayed    uint64 `json:"replayed"`
	BadRequests uint64 `json:"bad_requests"`
	// SendErrors are messages that libzmq refused.
	SendErrors uint64 `json:"send_errors"`
	// Said blocks are announced now, Left blocks are pending now. Next is the number of the
	// next batch.
	Said uint64 `json:"said" metric:",gauge"`
	Left uint64 `json:"left" metric:",gauge"`
	Next uint64 `json:"next" metric:"-"`
}

// counters are Stats while they count.
type counters struct {
	batches, events, blocks, bytes, raw    atomic.Uint64
	subscriptions, subscribers             atomic.Uint64
	reannounced                            atomic.Uint64
	droppedRaw, held, missed               atomic.Uint64
	unknownTokens, orphans, ignoredRemoves atomic.Uint64
	retries, recovered, unkept, unwanted   atomic.Uint64
	foreign, afterClose                    atomic.Uint64
	replays, replayed, badRequests         atomic.Uint64
	sendErrors, said, left, next           atomic.Uint64
}

// Stats returns the counters of the sink and its inbox. They are read one by one, so they may be a
// moment apart.
func (s *Sink) Stats() Stats {
	c, in := &s.count, s.inbox.Stats()
	return Stats{
		Batches: c.batches.Load(), Events: c.events.Load(), Blocks: c.blocks.Load(), Bytes: c.bytes.Load(), Raw: c.raw.Load(),
		Subscriptions: c.subscriptions.Load(), Subscribers: c.subscribers.Load(),
		Reannounced: c.reannounced.Load(), Overflows: in.Overflows, Gaps: in.Gaps,
		Dropped: in.Dropped, DroppedRaw: c.droppedRaw.Load(), Held: c.held.Load(), Missed: c.missed.Load(),
		UnknownTokens: c.unknownTokens.Load(), Orphans: c.orphans.Load(), IgnoredRemoves: c.ignoredRemoves.Load(),
		Retries: c.retries.Load(), Recovered: c.recovered.Load(), Unkept: c.unkept.Load(), Unwanted: c.unwanted.Load(),
		Foreign: c.foreign.Load(), AfterClose: c.afterClose.Load() + in.AfterClose,
		Replays: c.replays.Load(), Replayed: c.replayed.Load(), BadRequests: c.badRequests.Load(),
		SendErrors: c.sendErrors.Load(), Said: c.said.Load(), Left: c.left.Load(), Next: c.next.Load(),
	}
}
