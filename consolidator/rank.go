package consolidator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// RankConfig says where one worker rank publishes its KV events, and how to
// follow it. Fields that have a default take it when zero.
type RankConfig struct {
	// Worker is whose events these are. A batch that names another rank is
	// refused.
	Worker kv.Worker
	// BlockSize is the engine's KV block size in tokens, 1..4096.
	BlockSize int
	// EventsEndpoint is the ZMQ endpoint of the engine's PUB socket, such as
	// tcp://127.0.0.1:5557. A wildcard host means this machine.
	EventsEndpoint string
	// ReplayEndpoint is the engine's ROUTER socket for replay. Empty: none, and
	// every gap is a loss.
	ReplayEndpoint string
	// Topic is the prefix of the topics to receive; empty for all.
	Topic string
	// Bind makes the SUB socket bind EventsEndpoint, for engines that connect
	// (vLLM does when its endpoint names a concrete address).
	Bind bool
	// FullReports says that requests of this engine ask for full cache reports
	// (vLLM's kv_cache_report_mode=full); see the package comment.
	FullReports bool
	// MaxBlocks bounds the rank's table of engine blocks (25 bytes each, and 38 in the
	// stream); default 8 Mi.
	MaxBlocks int
	// ReceiveHWM is how many live messages libzmq may queue; default 100,000.
	ReceiveHWM int
	// IdleProbe is how long the stream must be silent before the rank asks
	// whether its last frames were lost; default 200 ms.
	IdleProbe time.Duration
	// ReplayTimeout is how long to wait for each reply of a replay; default 2 s.
	ReplayTimeout time.Duration
	// ListTimeout is how long Cached may take; default 6 s.
	ListTimeout time.Duration
	// Checkpoint is a file in which the rank keeps what it knows, on a tmpfs
	// best: it is written anew, at most every CheckpointEvery (default 500 ms), when
	// something has changed, and when Run ends; it costs as much again as the rank's
	// tables while it is written. Run begins with what it finds there and asks the
	// engine for what has happened since; until the engine has shown that it is the
	// same, the stream is degraded. It is removed when the engine restarts. Empty:
	// none.
	Checkpoint      string
	CheckpointEvery time.Duration
	// Identity tells one incarnation of the engine from another, such as a hash of
	// what it calls itself; 0 if nothing does. A checkpoint with another one is
	// rejected.
	Identity uint64
	// Cached asks for the hashes of all blocks that the engine has in its device
	// cache now. It is called in Run's goroutine, which stands still meanwhile: after
	// a loss that replay could not repair, after events that could not be decoded, and
	// for a checkpoint that no replay can continue. Its context ends after ListTimeout.
	// An error, or more than MaxBlocks hashes, is a failure; it is then asked again,
	// after a pause that grows from 2 s to 30 s. Nil: nobody knows.
	Cached func(ctx context.Context) ([]kv.EngineHash, error)
	// Tokens is told the tokens of each block that the rank learns of from an event,
	// under the stream's lock; nil: nobody wants them. Blocks from a checkpoint have
	// none.
	Tokens tokens.Sink
	// Raw gets the payload of each batch of this rank that is applied, lent, in order
	// and in Run's goroutine; nil: nobody wants them.
	Raw func(payload []byte)
	// Log receives one line a second at most about what goes wrong; nil: none.
	Log *zap.Logger
}

const (
	maxBlockSize     = 4096
	defaultMaxBlocks = 8 << 20
	defaultHWM       = 100_000
	defaultIdleProbe = 200 * time.Millisecond
	defaultTimeout   = 2 * time.Second
	defaultListTime  = 6 * time.Second
	// replayAttempts is how often in vain one gap is asked for before it is lost.
	replayAttempts = 4
	// maxHeldFrames and maxHeldBytes bound what waits for a replay.
	maxHeldFrames = 4096
	maxHeldBytes  = 64 << 20
	// rememberedBatches is how many applied batches a rank recognises by their bytes. A
	// frame replayed longer ago is told apart by its number alone.
	rememberedBatches = 1024
	// framesPerTurn bounds how much is received between two flushes.
	framesPerTurn = 256
	// listGrace is how long after the rank has caught up with the engine's list a
	// store may still be one that the list includes.
	listGrace = time.Second
)

// Validate checks the fields; the error names the first bad one.
func (c *RankConfig) Validate() error {
	if c.Worker.ID == 0 {
		return errors.New("rank worker: id 0 is not a worker")
	}
	if c.BlockSize < 1 || c.BlockSize > maxBlockSize {
		return fmt.Errorf("rank block size: %d is not in 1..%d", c.BlockSize, maxBlockSize)
	}
	if c.EventsEndpoint == "" {
		return errors.New("rank events endpoint: must not be empty")
	}
	if c.MaxBlocks > dense.MaxEntries {
		return fmt.Errorf("rank max blocks: %d is not in 0..%d", c.MaxBlocks, dense.MaxEntries)
	}
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"max blocks", int64(c.MaxBlocks)},
		{"receive hwm", int64(c.ReceiveHWM)},
		{"idle probe", int64(c.IdleProbe)},
		{"replay timeout", int64(c.ReplayTimeout)},
		{"list timeout", int64(c.ListTimeout)},
		{"checkpoint interval", int64(c.CheckpointEvery)},
	} {
		if f.v < 0 {
			return fmt.Errorf("rank %s: %d is negative", f.name, f.v)
		}
	}
	return nil
}

func (c *RankConfig) setDefaults() {
	if c.MaxBlocks == 0 {
		c.MaxBlocks = defaultMaxBlocks
	}
	if c.ReceiveHWM == 0 {
		c.ReceiveHWM = defaultHWM
	}
	if c.IdleProbe == 0 {
		c.IdleProbe = defaultIdleProbe
	}
	if c.ReplayTimeout == 0 {
		c.ReplayTimeout = defaultTimeout
	}
	if c.ListTimeout == 0 {
		c.ListTimeout = defaultListTime
	}
	if c.CheckpointEvery == 0 {
		c.CheckpointEvery = defaultCheckpointEvery
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
}

// Rank follows the KV events of one worker rank and keeps its stream.
type Rank struct {
	cfg    RankConfig
	stream *residency.Stream
	log    *limitedLog
	count  counters

	// What follows belongs to Run's goroutine.
	conv    *converter
	decoder engineevent.Decoder
	batch   engineevent.Batch
	file    *checkpointFile
	ctx     context.Context // Run's
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
	r.conv = newConverter(s, cfg.Worker, cfg.BlockSize, cfg.MaxBlocks, &r.count)
	r.conv.fullReports, r.conv.tokens, r.conv.canList = cfg.FullReports, cfg.Tokens, cfg.Cached != nil
	r.file = newCheckpointFile(cfg.Checkpoint, cfg.CheckpointEvery, &r.count, func(err error) {
		r.log.warn("checkpoint not written", zap.Error(err))
	})
	return r, nil
}

// Stats returns the counters.
func (r *Rank) Stats() RankStats { return r.count.snapshot() }

// Run follows the engine until ctx ends, and then returns nil. It returns an
// error when its sockets cannot be made or fail as a whole; an engine that is
// not there, or goes and comes back, is no error; until it has been heard of once,
// the stream is degraded. After an error the stream is empty and degraded. Run may
// be called once.
func (r *Rank) Run(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			r.conv.lost() // nobody follows the engine
		}
	}()
	r.conv.alone()
	socks, err := openSockets(&r.cfg)
	if err != nil {
		return fmt.Errorf("rank %s: %w", r.cfg.Worker, err)
	}
	defer socks.close()
	defer r.count.ended()
	socks.wakeWhenDone(ctx)
	seq := sequence.New(sequence.Config{
		Replay:     r.cfg.ReplayEndpoint != "",
		Idle:       r.cfg.IdleProbe,
		Timeout:    r.cfg.ReplayTimeout,
		Attempts:   replayAttempts,
		HeldFrames: maxHeldFrames,
		HeldBytes:  maxHeldBytes,
		Remembered: rememberedBatches,
	}, target{r}, &r.count.sequence, time.Now())
	r.ctx = ctx
	state := func(dst []byte) []byte {
		st := seq.State()
		return r.conv.appendCheckpoint(dst, r.id(), &st)
	}
	r.restore(seq)
	defer func() { r.file.finish(r.conv.version, state) }()
	for {
		r.advance(seq, socks)
		r.file.save(time.Now(), r.conv.version, state)
		ready, err := socks.wait(r.wake(seq))
		if err != nil {
			return fmt.Errorf("rank %s: %w", r.cfg.Worker, err)
		}
		if ready.done {
			return nil
		}
		if ready.connected {
			r.conv.connected()
		}
		if ready.live {
			r.receiveLive(seq, socks)
		}
		if ready.replay {
			r.receiveReplay(seq, socks)
		}
		r.stream.Flush()
	}
}

// wake is when the rank must do something even if nothing arrives; zero: never.
func (r *Rank) wake(seq *sequence.Sequencer) time.Time {
	wake := seq.Wake()
	for _, at := range []time.Time{r.file.due(r.conv.version), r.conv.wake(), r.listDue()} {
		if !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	return wake
}

// advance does what the sequencer wants done now.
func (r *Rank) advance(seq *sequence.Sequencer, socks *sockets) {
	now := time.Now()
	seq.Tick(now)
	r.conv.tick()
	r.relist(now)
	if start, due := seq.Request(now); due {
		if err := socks.ask(start); err != nil {
			r.log.warn("replay request failed", zap.Uint64("start", start), zap.Error(err))
			seq.ReplayFailed(now)
		}
	}
	if !seq.Asking() {
		socks.hangUp()
	}
}

// receiveLive takes what has arrived on the SUB socket.
func (r *Rank) receiveLive(seq *sequence.Sequencer, socks *sockets) {
	for range framesPerTurn {
		parts, ok := socks.receive(socks.sub)
		if !ok {
			if seq.CaughtUp() {
				r.conv.caughtUp()
			}
			return
		}
		r.count.frames.Add(1)
		n, payload, err := parseLive(parts)
		if err != nil {
			r.badFrame(err)
			continue
		}
		r.count.bytes.Add(uint64(len(payload)))
		seq.Live(time.Now(), n, payload)
	}
}

// receiveReplay takes what has arrived on the DEALER socket, up to the end mark.
func (r *Rank) receiveReplay(seq *sequence.Sequencer, socks *sockets) {
	for range framesPerTurn {
		if !seq.Asking() {
			return
		}
		parts, ok := socks.receive(socks.dealer)
		if !ok {
			return
		}
		reply, err := parseReply(parts)
		switch {
		case err != nil:
			r.badFrame(err)
		case reply.end:
			seq.ReplayEnd(time.Now())
		default:
			seq.Replayed(time.Now(), reply.seq, reply.payload)
		}
	}
}

func (r *Rank) badFrame(err error) {
	r.count.badFrames.Add(1)
	r.log.warn("engine message ignored", zap.Error(err))
}

// Readable implements sequence.Target.
func (r target) Readable(payload []byte) bool {
	if err := r.decoder.Decode(payload, &r.batch); err != nil {
		r.badFrame(err)
		return false
	}
	return true
}

// Apply implements sequence.Target.
func (r target) Apply(payload []byte) bool {
	if !r.Readable(payload) {
		return false
	}
	for _, err := range r.batch.Bad {
		r.log.warn("engine event ignored", zap.Error(err))
	}
	r.conv.apply(&r.batch)
	if r.cfg.Raw != nil && !(r.batch.HasRank && r.batch.Rank != r.cfg.Worker.Rank) {
		r.cfg.Raw(payload)
	}
	return true
}

// target is a Rank as its sequencer sees it.
type target struct{ *Rank }
