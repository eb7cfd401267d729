package command

import (
	"errors"
	"io"
	"slices"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/source"
	httpsource "github.com/blockyard-ai/blockyard/router/source/http"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// workerFlags are the flags of "blockyard router" that say where events and workers
// come from besides NATS.
type workerFlags struct {
	Agents      []string `name:"agents" placeholder:"URL" env:"BLOCKYARD_ROUTER_AGENTS" help:"Admin servers of agents to listen to over HTTP, such as http://node-7:9400."`
	WorkersFile string   `name:"workers-file" type:"path" placeholder:"FILE" env:"BLOCKYARD_ROUTER_WORKERS_FILE" help:"JSON file that lists such agents, and workers that no agent speaks for; read again when it changes."`
}

// sources reports whether the flags name any source of workers.
func (f *workerFlags) sources() bool { return len(f.Agents) > 0 || f.WorkersFile != "" }

// join is a transport that joins the given ones with the agents and workers of the
// flags, and with the load reports of n, which is nil without NATS. The agents are asked
// for their events where events is set. closeAll closes it and what it made, not what it
// was given.
func (f *workerFlags) join(log *zap.Logger, events bool, n *natssource.Source, given ...source.Transport) (joined *registry.Source, closeAll func() error, err error) {
	var made []io.Closer
	closeMade := func() (err error) {
		for _, c := range slices.Backward(made) {
			err = errors.Join(err, c.Close())
		}
		return err
	}
	http, err := httpsource.Connect(httpsource.Options{NoEvents: !events, Log: log})
	if err != nil {
		return nil, nil, err
	}
	made, given = append(made, http), append(given, http)
	if n != nil {
		loads, err := natssource.FollowLoads(n)
		if err != nil {
			return nil, nil, errors.Join(err, closeMade())
		}
		made, given = append(made, loads), append(given, loads)
	}
	joined, err = registry.New(registry.Options{
		File: f.WorkersFile, HTTP: http, Agents: f.Agents, Log: log,
	}, given...)
	if err != nil {
		return nil, nil, errors.Join(err, closeMade())
	}
	made = append(made, joined)
	return joined, closeMade, nil
}
