package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/natsauth"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
)

// EventOptions are how events are followed and where they are told. The zero value
// is the default.
type EventOptions struct {
	// Auth is how to log in to NATS and whom to trust there; JetStream has a stream
	// keep what is published there, nil for none.
	Auth      natsauth.Settings
	JetStream *publisher.JetStream
	// Embedded has the agent run a NATS server, over which events go when no URL is
	// set; nil for none. Its URL is written to the socket's path with .nats behind it,
	// for routers and other agents.
	Embedded *publisher.EmbeddedOptions
	// Dynamo has Dynamo's routers told, over the same NATS; nil for none. Its Log is
	// the agent's.
	Dynamo *dynamo.Options
	// ZMQ publishes what each rank can reach in the engines' own format, at the port of
	// the engine's events plus 1000. An engine that names another endpoint in its HELLO
	// has it there in any case.
	ZMQ bool
	// ZMQMode is how that stream names and merges blocks, for engines that do not say:
	// one of the proto.Consolidator… constants, default tiered.
	ZMQMode string
	// FullReports: see consolidator.RankConfig.
	FullReports bool
	// NoCheckpoints has an agent know nothing of what its engines held before it
	// started, until their events say it. By default it is kept beside the socket.
	NoCheckpoints bool
}

func (o *EventOptions) validate(nats bool) error {
	modes := []string{"", proto.ConsolidatorTiered, proto.ConsolidatorDedup, proto.ConsolidatorPassthrough}
	if !slices.Contains(modes, o.ZMQMode) {
		return fmt.Errorf("mode of the events in the engines' format %q: want one of %q", o.ZMQMode, modes[1:])
	}
	if o.Embedded != nil && nats {
		return errors.New("embedded NATS server: want no NATS URL besides")
	}
	if o.Dynamo == nil {
		return nil
	}
	if !nats && o.Embedded == nil {
		return errors.New("events for Dynamo's routers: want a NATS URL, over which they go")
	}
	return o.Dynamo.Validate()
}

// maxCheckpoints bounds the files of ranks that are kept beside a socket.
const maxCheckpoints = 256

// checkpoint is the file that keeps what a rank's engine holds from one agent to the
// next; empty when there is to be none. The oldest files go when there are too many:
// those of engines that are not coming back.
func (c *Config) checkpoint(w kv.Worker) string {
	if c.Events.NoCheckpoints {
		return ""
	}
	dir := c.Socket + ".ranks"
	if os.MkdirAll(dir, 0o700) != nil {
		return "" // then the next agent starts without
	}
	pruneOldest(dir, maxCheckpoints-1)
	return filepath.Join(dir, fmt.Sprintf("%016x-%d", uint64(w.ID), w.Rank))
}

// pruneOldest removes the files of dir that were not changed for the longest time, so
// that at most keep are left.
func pruneOldest(dir string, keep int) {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) <= keep {
		return
	}
	type aged struct {
		name string
		at   int64
	}
	files := make([]aged, 0, len(entries))
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			files = append(files, aged{e.Name(), info.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(files, func(a, b aged) int { return cmp.Compare(a.at, b.at) })
	for _, f := range files[:max(0, len(files)-keep)] {
		_ = os.Remove(filepath.Join(dir, f.name)) // another try comes with the next rank
	}
}
