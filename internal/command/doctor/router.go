package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/command/inspect"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
)

// routerState is what a router says of its feeds, workers, agents and servers.
type routerState struct {
	// version is that of blockyard_build_info; empty when unknown.
	version string
	Feeds   []struct {
		PublisherID       string `json:"publisher_id"`
		Owner, Health     string
		Cursor, Announced uint64
		Divergences       uint64
		Repaired          uint64 `json:"divergences_repaired"`
		DigestOK          bool   `json:"digest_ok"`
		Rival             string
	}
	Workers []routerWorker
	Agents  []struct {
		URL       string
		Connected bool
		Error     string
	}
	Servers []struct {
		URL, State, Problem string
	}
}

// routerWorker is a worker that may get requests.
type routerWorker struct {
	WorkerID  uint64 `json:"worker_id"`
	Rank      uint32 `json:"dp_rank"`
	Model     string
	BlockSize uint32 `json:"block_size"`
	Silent    bool
}

// checkRouter asks the router, when one is named.
func (c *Command) checkRouter(ctx context.Context) {
	if c.Router == "" {
		return
	}
	shown := natssource.WithoutCredentials(c.Router)
	c.checked("router " + shown)
	s := new(routerState)
	if err := c.askRouter(ctx, s); err != nil {
		c.found("router-unreachable", shown, "start blockyard router --http ADDRESS, or --router ADDRESS here: the router's ready line has its address as http", "%v", err)
		return
	}
	c.seen.router = s
	if len(s.Workers) == 0 {
		c.found("router-not-ready", shown, "--nats, --agents or --worker at the router, as the agents and servers have it", "0 workers")
	}
	for _, a := range s.Agents {
		if !a.Connected {
			c.found("agent-connection", a.URL, "--admin of the agent at an address that the router reaches, and that address in --agents", "%s", a.Error)
		}
	}
	for _, w := range s.Workers {
		if w.Silent {
			c.found("worker-without-events", fmt.Sprintf("worker %d/%d", w.WorkerID, w.Rank), eventsConfig, "nobody publishes its events")
		}
	}
	for _, w := range s.Servers {
		if w.State != "ready" && w.State != "draining" {
			c.found("server-not-ready", w.URL, "start the server, or name another --worker; docs/front-door.md#health", "%s: %s", w.State, w.Problem)
		}
	}
	c.checkFeeds(s)
}

// askRouter gets the answers of the router. The error is that of the feeds, which every router has.
func (c *Command) askRouter(ctx context.Context, s *routerState) error {
	server, err := c.Open(c.Router)
	if err != nil {
		return err
	}
	for _, a := range []struct {
		path string
		into any
	}{{"/v1/feeds", &s.Feeds}, {"/v1/workers", &s.Workers}, {"/v1/agents", &s.Agents}, {"/v1/servers", &s.Servers}} {
		body, err := server.Get(ctx, a.path)
		if errors.Is(err, inspect.ErrAbsent) && a.path != "/v1/feeds" {
			continue // without agents over HTTP, or without a front door
		}
		if err == nil {
			err = json.Unmarshal(body, a.into)
		}
		if err != nil {
			return err
		}
	}
	s.version = buildVersion(ctx, server)
	return nil
}

// checkFeeds looks at what the router believes of each publisher.
func (c *Command) checkFeeds(s *routerState) {
	for _, f := range s.Feeds {
		switch {
		case f.Rival != "":
			c.found("owner-ambiguous", f.Owner, "end one of them: give each engine its own worker id, and each node its own --node", "publishers %s and %s", f.PublisherID, f.Rival)
		case !f.DigestOK:
			c.found("index-diverged", f.Owner, "--index-memory, where blockyard_router_index_lost is above 0; otherwise report it", "%d divergences, %d repaired", f.Divergences, f.Repaired)
		case f.Health != "exact":
			c.found("feed-degraded", f.Owner, "wait while the cursor moves; otherwise blockyard doctor --agent at the owner's agent", "health %s, event %d of %d", f.Health, f.Cursor, f.Announced)
		}
	}
}

// compare finds what the parts say differently of one model.
func (c *Command) compare() {
	agent, router := c.seen.agent, c.seen.router
	if agent != nil && router != nil {
		feeds := make(map[string]bool)
		for _, f := range router.Feeds {
			feeds[f.PublisherID] = true
		}
		var absent []string
		for _, st := range agent.Streams {
			if st.PublisherID != "" && !feeds[st.PublisherID] {
				absent = append(absent, st.Owner)
			}
		}
		if len(absent) > 0 {
			c.found("agent-not-followed", agent.Node, "the same --nats and --cluster at agent and router, or the agent's --admin address in the router's --agents", "the router has no feed of %s", strings.Join(absent, ", "))
		}
	}
	sizes := make(map[string]map[uint32]string) // by model and block size: the part that reported the size
	add := func(model string, size uint32, who string) {
		if model == "" || size == 0 {
			return
		}
		if sizes[model] == nil {
			sizes[model] = make(map[uint32]string)
		}
		sizes[model][size] = who
	}
	if agent != nil {
		for _, p := range agent.Pools {
			if p.Sessions > 0 {
				add(p.Model, p.BlockSize, "agent "+agent.Node)
			}
		}
	}
	if router != nil {
		for _, w := range router.Workers {
			add(w.Model, w.BlockSize, fmt.Sprintf("worker %d/%d at the router", w.WorkerID, w.Rank))
		}
	}
	for _, e := range c.seen.engines {
		add(e.Model, uint32(e.Facts.BlockSize), e.URL)
	}
	for model, by := range sizes {
		if len(by) < 2 {
			continue
		}
		var each []string
		for size, who := range by {
			each = append(each, fmt.Sprintf("%d tokens (%s)", size, who))
		}
		c.found("block-size-differs", model, "one --block-size at all engines of the model; block-size= of --worker for a server that does not tell", "%s", strings.Join(sorted(each), ", "))
	}
}
