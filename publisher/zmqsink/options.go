package zmqsink

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	defaultBuffer          = 10000
	defaultHWM             = 10000
	defaultReannounceEvery = time.Second
	defaultLinger          = time.Second
	// The default ROUTER port is the PUB port plus replayOffset. The ports next to the PUB
	// port belong to the engine's other ranks.
	replayOffset = 1000
	maxBuffer    = 1 << 20
	maxPort      = 65535
)

// Options configure a Sink.
type Options struct {
	// Bind is the endpoint for subscribers: tcp://HOST:PORT, where HOST is an address or
	// * for all, and PORT is 0 or * for any that is free; or ipc://PATH.
	Bind string
	// ReplayBind is the endpoint for replay requests. Empty means Bind's port plus 1000, or
	// Bind's path plus "-replay". It must differ from Bind, and from the endpoints of the
	// engine's other ranks.
	ReplayBind string
	// Worker owns the blocks; its rank is in every batch.
	Worker kv.Worker
	// BlockSize is the worker's, in tokens.
	BlockSize uint32
	// Groups are the KV groups of a hybrid worker; empty for any other one. Events of such a
	// worker say which group their blocks are of, with the numbers of Groups.
	Groups kvevent.Groups
	// Topic is the first frame of every batch; may be empty.
	Topic string
	// Buffer is the number of batches held for replays, up to 64 MiB of them; 0 means
	// 10,000.
	Buffer int
	// HWM bounds the batches that wait for a slow subscriber; 0 means 10,000. The next
	// batch waits for room, and then goes to the other subscribers.
	HWM int
	// ReannounceEvery is the least time between two announcements of the whole state;
	// 0 means a second. After an announcement without subscribers, the next subscriber
	// does not wait for it.
	ReannounceEvery time.Duration
	// Log may be nil.
	Log *zap.Logger

	// giveUp reports whether batch seq stops waiting for a subscriber without room, after it has waited
	// for the duration waited. nil: after roomTimeout. Tests set it, so that no wait depends on their speed.
	giveUp func(seq uint64, waited time.Duration) bool
	// linger bounds the sending of batches after Close; 0 means a second.
	linger time.Duration
}

// complete returns o with the defaults in place of zero fields. The error names a field that is
// out of its range, and the range.
func (o Options) complete() (Options, error) {
	o.Log = cmp.Or(o.Log, zap.NewNop())
	o.Buffer = cmp.Or(o.Buffer, defaultBuffer)
	o.HWM = cmp.Or(o.HWM, defaultHWM)
	o.ReannounceEvery = cmp.Or(o.ReannounceEvery, defaultReannounceEvery)
	o.linger = cmp.Or(o.linger, defaultLinger)
	if o.giveUp == nil {
		o.giveUp = func(_ uint64, waited time.Duration) bool { return waited >= roomTimeout }
	}
	switch {
	case o.Buffer < 1 || o.Buffer > maxBuffer:
		return o, fmt.Errorf("buffer %d: want 1 to %d batches", o.Buffer, maxBuffer)
	case o.HWM < 1 || o.HWM > maxBuffer:
		return o, fmt.Errorf("hwm %d: want 1 to %d batches", o.HWM, maxBuffer)
	case o.ReannounceEvery < 0:
		return o, fmt.Errorf("reannounce every %s: want more than 0", o.ReannounceEvery)
	case o.BlockSize == 0:
		return o, fmt.Errorf("block size 0: want at least 1 token")
	}
	if o.ReplayBind == "" {
		var err error
		if o.ReplayBind, err = replayOf(o.Bind); err != nil {
			return o, err
		}
	}
	if o.ReplayBind == o.Bind && !isEphemeral(o.Bind) {
		return o, fmt.Errorf("replay bind %q: want another address than bind", o.ReplayBind)
	}
	return o, nil
}

// replayOf returns the default replay endpoint for bind, the endpoint for subscribers: an ipc path
// with "-replay" added, or the TCP port plus replayOffset. With an ephemeral port the replay
// endpoint gets another ephemeral one.
func replayOf(bind string) (string, error) {
	if strings.HasPrefix(bind, "ipc://") {
		return bind + "-replay", nil
	}
	colon := strings.LastIndexByte(bind, ':')
	if !strings.HasPrefix(bind, "tcp://") || colon < len("tcp://") {
		return "", fmt.Errorf("bind %q: want tcp://HOST:PORT or ipc://PATH", bind)
	}
	if isEphemeral(bind) {
		return bind, nil
	}
	port, err := strconv.Atoi(bind[colon+1:])
	if err != nil || port < 1 || port+replayOffset > maxPort {
		return "", fmt.Errorf("bind %q: want a port from 1 to %d, or a replay bind", bind, maxPort-replayOffset)
	}
	return bind[:colon+1] + strconv.Itoa(port+replayOffset), nil
}

// isEphemeral reports whether bind leaves the port to the system.
func isEphemeral(bind string) bool {
	return strings.HasPrefix(bind, "tcp://") && (strings.HasSuffix(bind, ":0") || strings.HasSuffix(bind, ":*"))
}
