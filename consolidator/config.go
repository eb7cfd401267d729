package consolidator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// RankConfig says where one worker rank publishes its KV events, and how to
// follow it. Fields that have a default take it when zero.
type RankConfig struct {
	// Worker is the worker rank that publishes the events. Batches that name another
	// rank are dropped.
	Worker kv.Worker
	// BlockSize is the engine's KV block size in tokens, 1..4096.
	BlockSize int
	// Groups are the KV groups of a hybrid engine, by the numbers in its events. Without them
	// the stream has the blocks of the main attention alone.
	Groups kvgroup.Groups
	// Learned makes the rank learn the groups from the engine's events; nil: it does not. Run's
	// goroutine calls it with the groups by the numbers in the engine's events when they may have
	// changed. They are empty while they are unknown, after a restart of the engine, and for an
	// engine with one group. It must be nil with Groups.
	Learned func(groups kvgroup.Groups)
	// EventsEndpoint is the ZMQ endpoint of the engine's PUB socket, such as
	// tcp://127.0.0.1:5557. A wildcard host is this machine.
	EventsEndpoint string
	// ReplayEndpoint is the engine's ROUTER socket for replay. Without one every gap is
	// a loss.
	ReplayEndpoint string
	// Topic is the prefix of the topics to receive. Empty means all.
	Topic string
	// Bind makes the SUB socket bind EventsEndpoint, for engines that connect
	// (vLLM does when its endpoint names a concrete address).
	Bind bool
	// FullReports says that requests of this engine ask for full cache reports
	// (vLLM's kv_cache_report_mode=full). See mirror.Config.
	FullReports bool
	// MaxBlocks bounds the rank's table of engine blocks (25 bytes each, and 38 in the
	// stream); default 8 Mi.
	MaxBlocks int
	// ReceiveHWM bounds the live messages that libzmq queues; default 100,000.
	ReceiveHWM int
	// IdleProbe is the time of silence after which the rank asks
	// whether its last frames were lost; default 200 ms.
	IdleProbe time.Duration
	// ReplayTimeout bounds the wait for each reply of a replay; default 2 s.
	ReplayTimeout time.Duration
	// ListTimeout bounds a call of Cached; default 6 s.
	ListTimeout time.Duration
	// Checkpoint is the path of the file that keeps the rank's state, best on a tmpfs.
	// Empty means no file. The file is written after changes, at most every
	// CheckpointEvery (default 500 ms), and when Run ends. Writing needs as much memory
	// again as the rank's tables. Run begins with the file's state and asks the engine
	// for later events. The stream is degraded until the engine has shown that it is the
	// same. A restart of the engine removes the file.
	Checkpoint      string
	CheckpointEvery time.Duration
	// Identity tells incarnations of the engine apart, such as a hash of the engine's
	// own id. 0 means unknown. A checkpoint with another identity is rejected.
	Identity uint64
	// Cached returns the hashes of all blocks that the engine has in its device cache
	// now. Nil means that the engine has no such list. Run's goroutine calls it, and waits:
	// after a loss that replay could not repair, after events that could not be decoded,
	// and for a checkpoint that no replay can continue. The context ends after
	// ListTimeout. An error, or more than MaxBlocks hashes, is a failure. Cached is then
	// called again after a pause that grows from 2 s to 30 s.
	Cached func(ctx context.Context) ([]kv.EngineHash, error)
	// Tokens receives the tokens of each block that an event stores, under the stream's
	// lock; may be nil. Blocks from a checkpoint have no tokens.
	Tokens tokens.Sink
	// Raw receives the payload of each applied batch of this rank, in order, in Run's
	// goroutine; may be nil. The payload is lent.
	Raw func(payload []byte)
	// Log receives at most one warning a second. Nil means no log.
	Log *zap.Logger
}

const (
	maxBlockSize           = 4096
	defaultMaxBlocks       = 8 << 20
	defaultHWM             = 100_000
	defaultIdleProbe       = 200 * time.Millisecond
	defaultTimeout         = 2 * time.Second
	defaultListTime        = 6 * time.Second
	defaultCheckpointEvery = 500 * time.Millisecond
	// replayAttempts is the number of replays without a result after which a gap is lost.
	replayAttempts = 4
	// maxHeldFrames and maxHeldBytes bound the live frames that wait for a replay.
	maxHeldFrames = 4096
	maxHeldBytes  = 64 << 20
	// rememberedBatches is the number of applied batches that a rank recognises by their
	// bytes.
	rememberedBatches = 1024
)

// Validate checks the fields. The error names the first bad field, its value and its
// range.
func (c *RankConfig) Validate() error {
	if c.Worker.ID == 0 {
		return errors.New("rank worker: id 0 is not a worker")
	}
	if c.BlockSize < 1 || c.BlockSize > maxBlockSize {
		return fmt.Errorf("rank block size: %d is not in 1..%d", c.BlockSize, maxBlockSize)
	}
	if err := c.Groups.Validate(uint32(c.BlockSize)); err != nil {
		return fmt.Errorf("rank %w", err)
	}
	if c.Learned != nil && len(c.Groups) > 0 {
		return errors.New("rank groups: given, though they are to be learnt")
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

// setDefaults gives zero fields their defaults.
func (c *RankConfig) setDefaults() {
	c.MaxBlocks = cmp.Or(c.MaxBlocks, defaultMaxBlocks)
	c.ReceiveHWM = cmp.Or(c.ReceiveHWM, defaultHWM)
	c.IdleProbe = cmp.Or(c.IdleProbe, defaultIdleProbe)
	c.ReplayTimeout = cmp.Or(c.ReplayTimeout, defaultTimeout)
	c.ListTimeout = cmp.Or(c.ListTimeout, defaultListTime)
	c.CheckpointEvery = cmp.Or(c.CheckpointEvery, defaultCheckpointEvery)
	c.Log = cmp.Or(c.Log, zap.NewNop())
}
