package consolidator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator/checkpoint"
	"github.com/blockyard-ai/blockyard/consolidator/mirror"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// framesPerTurn bounds the frames that are received between two flushes.
const framesPerTurn = 256

// Rank follows the KV events of one worker rank and keeps its stream.
type Rank struct {
	cfg    RankConfig
	stream *residency.Stream
	log    *limitedLog
	count  counters

	// The fields below belong to Run's goroutine.
	cache   *mirror.Cache
	decoder engineevent.Decoder
	batch   engineevent.Batch
	file    *checkpoint.File
	lists   listTimes
}

// NewRank returns a rank that writes to s, which must be the stream of
// cfg.Worker and must have no other writer. Nothing happens before Run.
func NewRank(cfg RankConfig, s *residency.Stream) (*Rank, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if want := kv.WorkerOwner(cfg.Worker); s.Owner() != want {
		return nil, fmt.Errorf("rank of %s: the stream belongs to %s", want, s.Owner())
	}
	cfg.setDefaults()
	r := &Rank{cfg: cfg, stream: s}
	r.log = newLimitedLog(cfg.Log.With(zap.Stringer("worker", cfg.Worker), zap.String("events", cfg.EventsEndpoint)))
	r.cache = mirror.New(mirror.Config{
		Stream: s, Rank: cfg.Worker.Rank, BlockSize: cfg.BlockSize, MaxBlocks: cfg.MaxBlocks, Groups: cfg.Groups,
		FullReports: cfg.FullReports, CanList: cfg.Cached != nil, Tokens: cfg.Tokens, Counters: &r.count.mirror,
		Learned: r.learned(),
	})
	r.file = checkpoint.NewFile(cfg.Checkpoint, cfg.CheckpointEvery, &r.count.checkpoints, func(err error) {
		r.log.warn("checkpoint not written", zap.Error(err))
	})
	return r, nil
}

// learned returns the mirror's callback for groups that it learns; nil without RankConfig.Learned.
func (r *Rank) learned() func(kvgroup.Groups, string) {
	if r.cfg.Learned == nil {
		return nil
	}
	return func(groups kvgroup.Groups, problem string) {
		if problem != "" {
			r.log.warn("the engine's KV groups cannot be followed; its full attention alone is credited", zap.String("reason", problem))
		}
		r.cfg.Learned(groups)
	}
}

// Stats returns the counters.
func (r *Rank) Stats() RankStats { return r.count.snapshot() }

// Run follows the engine until ctx ends, and then returns nil. It returns an error when
// its sockets cannot be opened or fail. The stream is then empty and degraded. An absent
// engine is no error: the stream is degraded until the engine has been reached once.
// Run may be called once.
func (r *Rank) Run(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			r.cache.Lost() // the engine is not followed any more
		}
	}()
	r.cache.Unreached()
	socks, err := openSockets(&r.cfg)
	if err != nil {
		return fmt.Errorf("rank %s: %w", r.cfg.Worker, err)
	}
	defer socks.close()
	defer r.count.ended()
	socks.wakeWhenDone(ctx)
	l := &loop{Rank: r, ctx: ctx, socks: socks}
	l.seq = sequence.New(sequence.Config{
		Replay:     r.cfg.ReplayEndpoint != "",
		Idle:       r.cfg.IdleProbe,
		Timeout:    r.cfg.ReplayTimeout,
		Attempts:   replayAttempts,
		HeldFrames: maxHeldFrames,
		HeldBytes:  maxHeldBytes,
		Remembered: rememberedBatches,
	}, l, &r.count.sequence, time.Now())
	l.restore()
	defer func() { r.file.Finish(r.cache.Version(), l.checkpoint) }()
	return l.run()
}

// loop is a Rank that runs. It belongs to Run's goroutine, and is the
// sequence.Target.
type loop struct {
	*Rank
	ctx   context.Context
	socks *sockets
	seq   *sequence.Sequencer
}

// run handles messages and timeouts until Run's context ends. An error says that a socket has
// failed.
func (l *loop) run() error {
	for {
		l.advance()
		l.file.Save(time.Now(), l.cache.Version(), l.checkpoint)
		ready, err := l.socks.wait(l.wake())
		if err != nil {
			return fmt.Errorf("rank %s: %w", l.cfg.Worker, err)
		}
		if ready.done {
			return nil
		}
		if ready.connected {
			l.cache.Reached()
		}
		if ready.live {
			l.receiveLive()
		}
		if ready.replay {
			l.receiveReplay()
		}
		l.stream.Flush()
	}
}

// wake returns when the rank must act even if nothing arrives; zero: never.
func (l *loop) wake() time.Time {
	wake := l.seq.Wake()
	for _, at := range []time.Time{l.file.Due(l.cache.Version()), l.cache.Wake(), l.listDue()} {
		if !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	return wake
}

// advance handles timeouts, lists and replay requests that are due.
func (l *loop) advance() {
	now := time.Now()
	l.seq.Tick(now)
	l.cache.Tick()
	l.listAgain(now)
	if start, due := l.seq.Request(now); due {
		if err := l.socks.ask(start); err != nil {
			l.log.warn("replay request failed", zap.Uint64("start", start), zap.Error(err))
			l.seq.ReplayFailed(now)
		}
	}
	if !l.seq.Replaying() { // also after the Sequencer has abandoned a replay
		l.socks.hangUp()
	}
}

// receiveLive takes messages from the SUB socket, at most framesPerTurn, and passes them to the
// Sequencer. When no message is left, the mirror learns that it has caught up with the engine.
func (l *loop) receiveLive() {
	for range framesPerTurn {
		parts, ok := l.socks.receive(l.socks.sub)
		if !ok {
			if l.seq.CaughtUp() {
				l.cache.CaughtUp()
			}
			return
		}
		l.count.frames.Add(1)
		n, payload, err := parseLive(parts)
		if err != nil {
			l.badFrame(err)
			continue
		}
		l.count.bytes.Add(uint64(len(payload)))
		l.seq.Live(time.Now(), n, payload)
	}
}

// receiveReplay takes messages from the DEALER socket, at most framesPerTurn and up to the end
// mark of the replay, and passes them to the Sequencer.
func (l *loop) receiveReplay() {
	for range framesPerTurn {
		if !l.seq.Replaying() {
			return
		}
		parts, ok := l.socks.receive(l.socks.dealer)
		if !ok {
			return
		}
		reply, err := parseReply(parts)
		switch {
		case err != nil:
			l.badFrame(err)
		case reply.end:
			l.seq.ReplayEnd(time.Now())
		default:
			l.seq.Replayed(time.Now(), reply.seq, reply.payload)
		}
	}
}

func (l *loop) badFrame(err error) {
	l.count.badFrames.Add(1)
	l.log.warn("engine message ignored", zap.Error(err))
}

// Readable implements sequence.Target. It decodes the payload into l.batch.
func (l *loop) Readable(payload []byte) bool {
	if err := l.decoder.Decode(payload, &l.batch); err != nil {
		l.badFrame(err)
		return false
	}
	return true
}

// Apply implements sequence.Target. The mirror and RankConfig.Raw get the batch. Raw gets no
// batch of another rank.
func (l *loop) Apply(payload []byte) bool {
	if !l.Readable(payload) {
		return false
	}
	if len(l.batch.Bad) > 0 {
		l.badEvents(l.batch.Bad)
	}
	l.cache.Apply(&l.batch)
	otherRank := l.batch.HasRank && l.batch.Rank != l.cfg.Worker.Rank
	if l.cfg.Raw != nil && !otherRank {
		l.cfg.Raw(payload)
	}
	return true
}

// badEvents counts and logs events that could not be decoded.
func (l *loop) badEvents(errs []error) {
	l.count.bad(errs)
	for _, err := range errs {
		l.log.warn("engine event ignored", zap.Error(err))
	}
}

// Restarted implements sequence.Target.
func (l *loop) Restarted() {
	l.log.warn("engine restarted: its blocks are forgotten")
	l.cache.Restarted()
	l.file.Remove()
}

// Continued implements sequence.Target.
func (l *loop) Continued() { l.cache.Confirmed() }

// checkpointID identifies this rank's checkpoint.
func (r *Rank) checkpointID() checkpoint.ID {
	return checkpoint.ID{Worker: r.cfg.Worker, BlockSize: r.cfg.BlockSize, Engine: r.cfg.Identity}
}

// checkpoint appends the rank's checkpoint without its checksum.
func (l *loop) checkpoint(dst []byte) []byte {
	return l.cache.AppendCheckpoint(dst, l.checkpointID(), l.seq.State())
}

// restore puts the mirror and the Sequencer into the state of the checkpoint, if there is one.
// It counts and ignores a checkpoint that cannot be used.
func (l *loop) restore() {
	if l.cfg.Checkpoint == "" {
		return
	}
	b, err := os.ReadFile(l.cfg.Checkpoint)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var saved *checkpoint.Saved
	if err == nil {
		saved, err = checkpoint.Parse(b, l.checkpointID())
	}
	if err != nil {
		l.count.checkpointsRejected.Add(1)
		l.log.warn("checkpoint ignored", zap.Error(err))
		return
	}
	l.count.restored.Add(uint64(l.cache.Restore(saved)))
	if l.cfg.ReplayEndpoint == "" || saved.Degraded {
		// No replay can confirm the state, or the state was not certain when it was saved.
		l.cache.WantList()
	}
	l.seq.Restore(time.Now(), saved.Sequence)
}

// logPause is the least time between two lines of a limitedLog.
const logPause = time.Second

// limitedLog writes at most one warning a second, with the number of suppressed ones.
// It belongs to one goroutine.
type limitedLog struct {
	log        *zap.Logger
	last       time.Time
	suppressed int
}

func newLimitedLog(log *zap.Logger) *limitedLog { return &limitedLog{log: log} }

// warn writes a warning, or counts it as suppressed within logPause of the last one.
func (l *limitedLog) warn(msg string, fields ...zap.Field) {
	now := time.Now()
	if !l.last.IsZero() && now.Sub(l.last) < logPause {
		l.suppressed++
		return
	}
	l.log.Warn(msg, append(fields, zap.Int("suppressed", l.suppressed))...)
	l.last, l.suppressed = now, 0
}
