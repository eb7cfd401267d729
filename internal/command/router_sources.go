package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/source"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// routerSources are where a router's messages come from, joined.
type routerSources struct {
	*registry.Source
	nats *natssource.Source // nil: there is none
	made []io.Closer
}

// closerFunc is a function that closes something.
type closerFunc func() error

// Close implements io.Closer.
func (f closerFunc) Close() error { return f() }

// openSources connects to all that the flags name.
func (c *Router) openSources(log *zap.Logger) (*routerSources, error) {
	options, err := c.natsOptions(log)
	if err != nil {
		return nil, err
	}
	s := &routerSources{}
	if err := s.open(c, options, log); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *routerSources) open(c *Router, options *natssource.Options, log *zap.Logger) (err error) {
	var given []source.Transport
	if options != nil {
		if s.nats, err = natssource.Connect(*options); err != nil {
			return err
		}
		s.made = append(s.made, s.nats)
		given = append(given, s.nats)
	}
	workers, err := c.dynamoWorkers.open(s.nats, c.wantsEvents(), log)
	if err != nil {
		return err
	}
	if workers != nil {
		s.made = append(s.made, workers)
		given = append(given, workers)
	}
	joined, closeJoined, err := c.workerFlags.join(log, c.wantsEvents(), s.nats, given...)
	if err != nil {
		return err
	}
	s.Source, s.made = joined, append(s.made, closerFunc(closeJoined))
	return nil
}

// Close closes what was opened, the last first.
func (s *routerSources) Close() (err error) {
	for _, c := range slices.Backward(s.made) {
		err = errors.Join(err, c.Close())
	}
	return err
}

// wantsEvents reports whether the sources are to be asked for events.
func (c *Router) wantsEvents() bool { return c.settings.ShouldSubscribeToKVEvents() }

// durable reports whether events come from a stream that keeps them.
func (c *Router) durable() bool { return c.DurableKVEvents && c.wantsEvents() }

// natsOptions says how to reach NATS; nil: there is none.
func (c *Router) natsOptions(log *zap.Logger) (*natssource.Options, error) {
	url := c.NATS
	if c.NATSFile != "" {
		if url != "" {
			return nil, errors.New("--nats-file: want no --nats besides")
		}
		b, err := os.ReadFile(c.NATSFile)
		if err != nil {
			return nil, fmt.Errorf("--nats-file: %w", err)
		}
		url = strings.TrimSpace(string(b))
	}
	url, auth, err := c.resolve(url)
	switch {
	case err != nil:
		return nil, err
	case url != "":
		return &natssource.Options{URL: url, Cluster: c.Cluster, Auth: auth, JetStream: c.durable(), Stream: c.Stream,
			NoEvents: !c.wantsEvents(), Log: log}, nil
	case c.DurableKVEvents:
		return nil, errors.New("--durable-kv-events: needs --nats")
	case c.dynamoWorkers.Endpoint != "" && c.wantsEvents():
		return nil, errors.New("--dynamo-endpoint: needs --nats, over which Dynamo's workers send events")
	case !c.workerFlags.sources() && c.dynamoWorkers.Endpoint == "":
		log.Warn("the router has no source of workers: it serves those that register over --control, or over --http with --http-registration; --nats, --agents and --workers-file name others")
	}
	return nil, nil
}
