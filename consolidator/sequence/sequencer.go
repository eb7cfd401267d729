package sequence

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

// Config bounds the memory and the repairs of a Sequencer.
type Config struct {
	// Replay is true when there is an endpoint to ask for a replay.
	Replay bool
	// Idle is the silence after the last frame before the first tail probe.
	Idle time.Duration
	// Timeout bounds the wait for the next reply of a replay.
	Timeout time.Duration
	// Attempts is the number of replays in a row without a batch after which a gap is lost.
	Attempts int
	// HeldFrames and HeldBytes bound the live frames that wait for a replay.
	HeldFrames, HeldBytes int
	// Remembered is the number of applied batches that are recognised by their bytes. Frames of
	// older batches are recognised by their number alone.
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

// Target receives the decisions of a Sequencer.
type Target interface {
	// Apply applies the next batch of the sequence. It returns false when the batch
	// cannot be read; then nothing was applied.
	Apply(payload []byte) bool
	// Readable reports whether Apply could read the batch.
	Readable(payload []byte) bool
	// Restarted says that later batches are another incarnation's, from its first one.
	Restarted()
	// Lost says that batches are missing before the next one.
	Lost()
	// Continued says that a replay has shown the last applied batch to be the engine's.
	Continued()
}

type phase uint8

const (
	// following: live frames are applied as they come.
	following phase = iota
	// replayDue: a replay starts at retryAt; live frames are held.
	replayDue
	// replaying: live frames are held until the current replay ends.
	replaying
)

// frame is a live message.
type frame struct {
	seq     uint64
	payload []byte
	// request is the number of replays requested before the frame came.
	request uint64
}

// Sequencer decides which batches of one engine are applied, replayed or lost. Its owner
// passes in frames and the time. The owner starts the replay that Request returns, and
// abandons the replay when Replaying returns false.
type Sequencer struct {
	cfg    Config
	target Target
	count  *Counters

	// next is the number of the next batch to apply. recent remembers the applied batches
	// before next.
	next   uint64
	recent recent
	// lastLive is the highest number of a live frame of this incarnation.
	lastLive uint64
	hasLive  bool
	// requests counts the replays requested. A frame and an applied batch carry the count, so
	// that recognise can tell which of the two is later.
	requests uint64
	// answersReplays: this incarnation has answered a replay, so it keeps a history.
	answersReplays bool
	// mayBeNewEngine: an engine that keeps a history has not answered a replay, so
	// another incarnation may be there.
	mayBeNewEngine bool

	phase phase
	// gap: batches before gapEnd are missing.
	gap    bool
	gapEnd uint64
	// attempt counts the replays for the present gap that brought nothing.
	attempt     int
	retryAt     time.Time // of the next replay, in phase replayDue
	deadline    time.Time // of the current replay
	lastRequest time.Time

	// The current replay. It starts with the last applied batch, whose bytes are compared.
	// lastVerified: the bytes were equal, or there is nothing to compare. replayAnswered: a batch came.
	// replayApplied: a batch was applied. gapCounted: Counters.Gaps has the gap that the replayed
	// batches belong to.
	lastVerified, replayAnswered, replayApplied, gapCounted bool

	held heldFrames

	probeAt time.Time
	probes  backoff.Pauses
}

// New returns a Sequencer that expects batch 0 and tells target its decisions.
func New(cfg Config, target Target, count *Counters, now time.Time) *Sequencer {
	s := &Sequencer{
		cfg: cfg, target: target, count: count, recent: newRecent(cfg.Remembered),
		held:   heldFrames{maxFrames: cfg.HeldFrames, maxBytes: cfg.HeldBytes},
		probes: backoff.Doubling(firstProbePause, maxProbePause),
	}
	s.restartProbes(now)
	return s
}

// State is the saved state of a Sequencer, for Restore.
type State struct {
	// Next is the number of the next batch. LastLive is the highest number of a live
	// frame, if HasLive.
	Next, LastLive uint64
	HasLive        bool
	// Remembered are the last applied batches, in any order.
	Remembered []Applied
}

// State returns the state for Restore.
func (s *Sequencer) State() State {
	st := State{Next: s.next, LastLive: s.lastLive, HasLive: s.hasLive}
	for _, e := range s.recent.entries {
		if e.After != 0 { // not an empty entry
			st.Remembered = append(st.Remembered, e)
		}
	}
	return st
}

// Restore sets a new Sequencer to a saved state. The engine may have been replaced since
// the state was saved. So a replay is due at once, and live frames are held until then.
func (s *Sequencer) Restore(now time.Time, st State) {
	s.next, s.lastLive, s.hasLive = st.Next, st.LastLive, st.HasLive
	for _, e := range st.Remembered {
		s.recent.entries[(e.After-1)%uint64(len(s.recent.entries))] = Applied{After: e.After, Sum: e.Sum}
	}
	if s.cfg.Replay {
		// An engine that answers without our last batch is another incarnation, even if
		// the old engine was never seen to keep a history.
		s.answersReplays, s.mayBeNewEngine = true, true
		s.scheduleReplay(now)
	}
}

// Live takes a frame of the live stream: it applies the frame, skips the frame, or holds the
// frame until a replay is over. A frame without room among the held ones is dropped; later it
// counts as a gap. The Sequencer owns the payload from then on.
func (s *Sequencer) Live(now time.Time, seq uint64, payload []byte) {
	if seq >= s.next {
		s.restartProbes(now)
		tailProbe := !s.gap && !s.mayBeNewEngine // else the replay has another reason
		if s.phase != following && tailProbe && !s.replayAnswered {
			// A tail probe is a replay that asks, after a silence, whether the last frames were
			// lost. This frame comes after them: its number shows a loss without the replay.
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

// Replaying reports whether a replay is running.
func (s *Sequencer) Replaying() bool { return s.phase == replaying }

// CaughtUp reports whether no replay is running or due and no live frame is held.
func (s *Sequencer) CaughtUp() bool { return s.phase == following && len(s.held.frames) == 0 }

// Wake returns when Tick must be called next; zero: never.
func (s *Sequencer) Wake() time.Time {
	switch s.phase {
	case replayDue:
		return s.retryAt
	case replaying:
		return s.deadline
	}
	if !s.cfg.Replay {
		return time.Time{}
	}
	return s.probeAt
}

// Tick gives up a replay that is too slow. After a silence it makes a tail probe due: a replay
// that shows whether the engine's last frames were lost.
func (s *Sequencer) Tick(now time.Time) {
	switch {
	case s.phase == replaying && !now.Before(s.deadline):
		s.ReplayFailed(now)
	case s.phase == following && s.cfg.Replay && !now.Before(s.probeAt):
		s.probeAt = now.Add(s.probes.NextBackOff())
		s.scheduleReplay(now)
	}
}

// restartProbes makes the next tail probe (see Tick) due after a silence of Config.Idle.
func (s *Sequencer) restartProbes(now time.Time) {
	s.probeAt = now.Add(s.cfg.Idle)
	s.probes.Reset()
}

// applyHeld applies or skips the frames that were held during a replay, oldest first, until one
// of them has to wait for another replay. Frames that found no room came after the held ones:
// behind the held ones it opens a gap for the first of them. Later frames show the others.
func (s *Sequencer) applyHeld(now time.Time) {
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
	if firstDropped, ok := s.held.takeOverflow(); ok && firstDropped >= s.next {
		s.foundGap(now, firstDropped+1)
	}
}

// take handles one live frame: it applies the frame, skips the frame, or schedules a
// replay. It returns false when the frame must be held until that replay is over.
// s.mayBeNewEngine: the engine has not answered a replay, so a new process, whose batches start
// at 0, may have taken its place.
//
// An unreadable frame is skipped as if it had not been received, so that garbage never
// moves the sequence. If it was a frame of the engine, the next frame shows the gap.
func (s *Sequencer) take(now time.Time, f frame) bool {
	if f.seq != s.next && !s.target.Readable(f.payload) {
		return true
	}
	if f.seq < s.next {
		switch s.recognise(f) {
		case isDuplicate:
			s.skipDuplicate(f.seq)
			return true
		case isForgotten:
			if !s.mayBeNewEngine {
				s.skipDuplicate(f.seq)
				return true
			}
			// The frame may be a duplicate or a new incarnation's. Only the replay that is
			// scheduled below can tell.
		case isOutdated:
			s.count.Outdated.Add(1)
			return true
		case isNew:
			s.restart() // expects batch 0; a higher f.seq shows a gap below
		}
	}
	if s.mayBeNewEngine && s.cfg.Replay {
		// The frame may be a new incarnation's. The replay compares the last applied batch.
		s.scheduleReplay(now)
		return false
	}
	if f.seq > s.next {
		s.foundGap(now, f.seq) // schedules a replay; without replays the gap is lost, and f is next
		if s.phase != following {
			return false
		}
	}
	if s.apply(f.payload, 0) {
		s.lastLive, s.hasLive = f.seq, true
	}
	return true
}

// skipDuplicate counts a live frame whose batch was applied before.
func (s *Sequencer) skipDuplicate(seq uint64) {
	s.count.Duplicates.Add(1)
	s.lastLive, s.hasLive = max(seq, s.lastLive), true
}

// recognition classifies a frame with an old number.
type recognition uint8

const (
	// isDuplicate: the batch was applied before.
	isDuplicate recognition = iota
	// isForgotten: the batch is not remembered; its number says that it was applied before.
	isForgotten
	// isOutdated: the frame is an earlier incarnation's.
	isOutdated
	// isNew: the frame is a new incarnation's.
	isNew
)

// recognise classifies a frame whose number is lower than next.
//
// If the batch of that number is remembered, its bytes decide. When they differ, the
// later of the two is the present engine's. A replay that was requested after the
// frame came is later than the frame.
//
// If the batch is forgotten, the number decides. A frame newer than all live ones, or
// the first live one, was replayed before. This can hide a new engine until the next
// tail probe. The opposite error would be worse: a replayed frame that is taken for a
// new engine's would be replayed again, for ever. A frame older than a live one cannot
// come twice.
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

// foundGap opens a gap: the batches before end are missing. Without replay they are
// lost at once.
func (s *Sequencer) foundGap(now time.Time, end uint64) {
	s.count.Gaps.Add(1)
	s.setGap(true)
	s.gapEnd, s.attempt = end, 0
	if !s.cfg.Replay {
		s.lose(end)
		return
	}
	s.scheduleReplay(now)
}

// lose gives up the missing batches before seq, and reports the loss to the Target.
func (s *Sequencer) lose(seq uint64) {
	if !s.gap { // a replay has shown the loss, before any live frame
		s.count.Gaps.Add(1)
	}
	s.count.Lost.Add(1)
	s.setGap(false)
	s.recent.reset()
	s.next, s.gapCounted = seq, true
	s.target.Lost()
}

// restart expects batch 0 of another incarnation of the engine, and reports the restart to the
// Target. What the Sequencer has learnt of the old one is void.
func (s *Sequencer) restart() {
	s.count.Restarts.Add(1)
	s.recent.reset()
	s.next, s.lastLive, s.hasLive = 0, 0, false
	s.answersReplays, s.mayBeNewEngine = false, false
	s.target.Restarted()
}

// apply applies batch next. It returns false when the batch cannot be read. Request is
// the number of the replay that brought the batch, 0 for a live frame.
func (s *Sequencer) apply(payload []byte, request uint64) bool {
	if !s.target.Apply(payload) {
		return false
	}
	s.recent.add(s.next, payload, request)
	s.next++
	return true
}

// setGap opens or closes the gap, and sets the gauge Repairing.
func (s *Sequencer) setGap(open bool) {
	s.gap = open
	s.count.Repairing.Store(open)
}
