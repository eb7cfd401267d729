package consolidator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
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
	maxBlockSize           = 4096
	defaultMaxBlocks       = 8 << 20
	defaultHWM             = 100_000
	defaultIdleProbe       = 200 * time.Millisecond
	defaultTimeout         = 2 * time.Second
	defaultListTime        = 6 * time.Second
	defaultCheckpointEvery = 500 * time.Millisecond
	// replayAttempts is how often in vain one gap is asked for before it is lost.
	replayAttempts = 4
	// maxHeldFrames and maxHeldBytes bound what waits for a replay.
	maxHeldFrames = 4096
	maxHeldBytes  = 64 << 20
	// rememberedBatches is how many applied batches a rank recognises by their bytes. A
	// frame replayed longer ago is told apart by its number alone.
	rememberedBatches = 1024
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
