package sequence

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

// Config bounds how a sequencer repairs.
type Config struct {
	// replay: there is an endpoint to ask.
	Replay bool
	// idle is how long after the last frame the first tail probe is sent.
	Idle time.Duration
	// timeout is how long to wait for the next reply of a replay.
	Timeout time.Duration
	// attempts is how often in a row one gap is asked for without any progress
	// before it is lost.
	Attempts int
	// heldFrames and heldBytes bound the live frames that wait for a replay.
	HeldFrames, HeldBytes int
	// recent is how many applied batches are remembered; a frame of another is told apart by its number alone.
	Remembered int
}

const (
	// replayCooldown separates the requests of one rank. The pauses between the attempts
	// at one gap double from twice as long up to maxReplayPause.
	replayCooldown = 50 * time.Millisecond
	maxReplayPause = time.Minute
	// firstProbePause doubles from probe to probe up to maxProbePause while the
	// engine is idle.
	firstProbePause = time.Second
	maxProbePause   = 5 * time.Second
)

// Target is what a sequencer drives.
type Target interface {
	// apply applies the next batch of the sequence. False means that it cannot be
	// read and that nothing was applied. readable tells the same beforehand.
	Apply(payload []byte) bool
	Readable(payload []byte) bool
	// restarted: batches from here on are another incarnation's, from its first.
	Restarted()
	// lost: batches are missing before the next one applied.
	Lost()
	// continued: the engine has shown that its last batch is the one that was applied
	// last.
	Continued()
}

type phase uint8

const (
	// following: live frames are applied as they come.
	following phase = iota
	// waiting: a replay is due at a certain time; live frames are held.
	waiting
	// asking: a replay is under way; live frames are held.
	asking
)

// frame is a live message.
type frame struct {
	seq     uint64
	payload []byte
	// request is how many replays had been asked for when it came.
	request uint64
}

// sequencer puts the batches of one engine into order: each exactly once, or
// else the loss is told. It does no I/O and knows no clock: its owner passes in
// what arrives and when, asks it for the replay to start (request), and gives
// up a replay when the sequencer has left the phase asking.
type Sequencer struct {
	cfg   Config
	out   Target
	count *Counters

	// next is the number of the next batch to apply; recent knows those before.
	next   uint64
	recent recent
	// lastLive is the highest number seen live in this incarnation.
	lastLive uint64
	hasLive  bool
	// requests counts the replays asked for.
	requests uint64
	// served: this incarnation has answered a replay, so it keeps a history.
	// suspect: it has then failed to answer, so it may have been replaced.
	served, suspect bool

	phase phase
	// gap: batches before gapEnd are known to be missing.
	gap    bool
	gapEnd uint64
	// attempt counts requests in vain for the present gap. retryAt is when the next
	// request is due (waiting), deadline when to give it up (asking).
	attempt     int
	retryAt     time.Time
	deadline    time.Time
	lastRequest time.Time
	// A request starts with the last applied batch, to compare it. verified: it
	// was the same, or cannot be had. answered: a batch came. progress:
	// one was applied. counted: what the replay brings belongs to a gap that was
	// counted already.
	verified, answered, progress, counted bool

	held heldFrames

	probeAt time.Time
	probes  backoff.Pauses
}

// New returns a Sequencer that waits for batch 0 and drives out.
func New(cfg Config, out Target, count *Counters, now time.Time) *Sequencer {
	s := &Sequencer{cfg: cfg, out: out, count: count, recent: newRecent(cfg.Remembered),
		probes: backoff.Doubling(firstProbePause, maxProbePause)}
	s.held.maxFrames, s.held.maxBytes = cfg.HeldFrames, cfg.HeldBytes
	s.activity(now)
	return s
}

// State is what a sequencer has to remember to go on later.
type State struct {
	Next, LastLive uint64
	HasLive        bool
	Remembered     []Applied // in any order
}

// state returns what restore needs.
func (s *Sequencer) State() State {
	st := State{Next: s.next, LastLive: s.lastLive, HasLive: s.hasLive}
	for _, e := range s.recent.entries {
		if e.After != 0 {
			st.Remembered = append(st.Remembered, e)
		}
	}
	return st
}

// restore goes on where another sequencer was. Whether the engine is still the
// same is unknown: the history is asked at once, and live frames wait for it.
func (s *Sequencer) Restore(now time.Time, st State) {
	s.next, s.lastLive, s.hasLive = st.Next, st.LastLive, st.HasLive
	for _, e := range st.Remembered {
		s.recent.entries[(e.After-1)%uint64(len(s.recent.entries))] = Applied{After: e.After, Sum: e.Sum}
	}
	if s.cfg.Replay {
		// An engine that answers without our last batch is another one, even if
		// there was no occasion to see that the old one kept a history.
		s.served, s.suspect = true, true
		s.ask(now)
	}
}

// live takes a frame from the live stream and owns its payload from then on.
func (s *Sequencer) Live(now time.Time, seq uint64, payload []byte) {
	if seq >= s.next {
		s.activity(now)
		if s.phase != following && !s.gap && !s.suspect && !s.answered {
			// A frame tells what the probe was to find out, and sooner. One with an
			// old number tells nothing.
			s.phase = following
		}
	}
	f := frame{seq, payload, s.requests}
	if s.phase == following && s.take(now, f) {
		return
	}
	if !s.held.push(f) {
		s.count.Overflows.Add(1)
	}
}

// Asking reports that a replay is under way. Its owner gives it up when this turns false.
func (s *Sequencer) Asking() bool { return s.phase == asking }

// Following reports that no replay is under way or due.
func (s *Sequencer) Following() bool { return s.phase == following }

// CaughtUp reports that every frame that has come is applied.
func (s *Sequencer) CaughtUp() bool { return s.phase == following && len(s.held.frames) == 0 }

// wake is when tick must be called next.
func (s *Sequencer) Wake() time.Time {
	switch s.phase {
	case waiting:
		return s.retryAt
	case asking:
		return s.deadline
	}
	if !s.cfg.Replay {
		return time.Time{}
	}
	return s.probeAt
}

// tick does what is due: gives up a replay, or starts a probe.
func (s *Sequencer) Tick(now time.Time) {
	switch {
	case s.phase == asking && !now.Before(s.deadline):
		s.ReplayFailed(now)
	case s.phase == following && s.cfg.Replay && !now.Before(s.probeAt):
		s.probeAt = now.Add(s.probes.NextBackOff())
		s.ask(now)
	}
}

// activity restarts the wait for silence.
func (s *Sequencer) activity(now time.Time) {
	s.probeAt = now.Add(s.cfg.Idle)
	s.probes.Reset()
}

// drain applies held frames until one shows a gap.
func (s *Sequencer) drain(now time.Time) {
	for {
		f, ok := s.held.first()
		if !ok {
			break
		}
		if !s.take(now, f) {
			return
		}
		s.held.pop()
	}
	if missing, ok := s.held.takeOverflow(); ok && missing >= s.next {
		s.foundGap(now, missing+1)
	}
}

// take applies one live frame; false means that it has to wait for a repair. A
// frame that cannot be read counts as not received, so that nobody can move the
// sequence with garbage; if it was the engine's, the next one shows the gap.
func (s *Sequencer) take(now time.Time, f frame) bool {
	if f.seq != s.next && !s.out.Readable(f.payload) {
		return true
	}
	if f.seq < s.next {
		r := s.recognise(f)
		switch {
		case r == isDuplicate, r == isForgotten && !s.suspect:
			s.count.Duplicates.Add(1)
			s.lastLive, s.hasLive = max(f.seq, s.lastLive), true
			return true
		case r == isOutdated:
			s.count.Outdated.Add(1)
			return true
		case r == isNew:
			s.restart()
		}
	}
	if s.suspect && s.cfg.Replay {
		s.ask(now)
		return false
	}
	if f.seq > s.next {
		s.foundGap(now, f.seq)
		if s.phase != following {
			return false
		}
	}
	if s.apply(f.payload, 0) {
		s.lastLive, s.hasLive = f.seq, true
	}
	return true
}

// recognition is what a frame with an old number is.
type recognition uint8

const (
	// isDuplicate: the batch was applied before.
	isDuplicate recognition = iota
	// isForgotten: it was, as far as its number tells.
	isForgotten
	// isOutdated: it is of an engine that has gone.
	isOutdated
	// isNew: it is of an engine that counts anew.
	isNew
)

// recognise tells what a frame with an old number is. When the batch of that
// number is remembered, its bytes decide; if they differ, the later of the two
// is the present engine's, and a replay that was asked for after the frame came
// is later than the frame. When it is not remembered, a frame newer than all
// live ones, or the first live one, was replayed before and its batch forgotten
// since. That can hide a new engine until the next tail probe; but to take a
// replayed frame for a new engine's would bring it by replay again, for ever. A
// frame older than a live one cannot come twice.
func (s *Sequencer) recognise(f frame) recognition {
	batch, remembered := s.recent.find(f.seq)
	switch {
	case remembered && batch.is(f.payload):
		return isDuplicate
	case remembered && batch.request > f.request:
		return isOutdated
	case !remembered && (!s.hasLive || f.seq > s.lastLive):
		return isForgotten
	}
	return isNew
}

// foundGap notes that the batches before end are missing. Without replay that
// is a loss at once.
func (s *Sequencer) foundGap(now time.Time, end uint64) {
	s.count.Gaps.Add(1)
	s.setGap(true)
	s.gapEnd, s.attempt = end, 0
	if !s.cfg.Replay {
		s.lose(end)
		return
	}
	s.ask(now)
}

// lose gives up everything before batch seq.
func (s *Sequencer) lose(seq uint64) {
	if !s.gap {
		s.count.Gaps.Add(1)
	}
	s.count.Lost.Add(1)
	s.setGap(false)
	s.recent.reset()
	s.next, s.counted = seq, true
	s.out.Lost()
}

// restart begins with batch 0 of another incarnation.
func (s *Sequencer) restart() {
	s.count.Restarts.Add(1)
	s.recent.reset()
	s.next, s.lastLive, s.hasLive = 0, 0, false
	s.served, s.suspect = false, false
	s.out.Restarted()
}

// apply applies batch next, if it can be read; request is as in type applied.
func (s *Sequencer) apply(payload []byte, request uint64) bool {
	if !s.out.Apply(payload) {
		return false
	}
	s.recent.add(s.next, payload, request)
	s.next++
	return true
}

func (s *Sequencer) setGap(open bool) {
	s.gap = open
	s.count.Repairing.Store(open)
}
