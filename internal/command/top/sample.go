package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/command/inspect"
)

// lookTimeout bounds one look at all servers.
const lookTimeout = 5 * time.Second

// sample is what the servers said at one moment.
type sample struct {
	at     time.Time
	router *routerSample // nil without an answer
	agents []*agentSample
	// problems name the servers without an answer.
	problems []string
}

// routerSample is what a router said.
type routerSample struct {
	URL     string
	Feeds   []feed
	Workers []worker
	Agents  []struct {
		URL       string
		Connected bool
	}
	Metrics metrics
}

// feed is the router's view of a publisher.
type feed struct {
	PublisherID                                    string `json:"publisher_id"`
	Owner, Health                                  string
	Cursor, Announced, Gaps, Repaired, Divergences uint64
	DigestOK                                       bool `json:"digest_ok"`
}

// worker is a worker rank that the router knows.
type worker struct {
	WorkerID       uint64 `json:"worker_id"`
	DPRank         uint32 `json:"dp_rank"`
	Model, Quality string
	Silent         bool
	Load           *struct {
		Age     float64 `json:"age_seconds"`
		Total   uint64  `json:"device_blocks_total"`
		Used    uint64  `json:"device_blocks_used"`
		Running uint64  `json:"running_requests"`
		Waiting uint64  `json:"waiting_requests"`
	}
	Measured struct {
		Prefill *struct {
			PerSecond float64 `json:"per_second"`
		} `json:"prefill_tokens"`
	}
}

// agentSample is what an agent said.
type agentSample struct {
	URL      string
	Node     string
	Sessions int
	Events   struct{ In, Out, Lost, Gaps uint64 }
	Pools    []pool
	// Connectors have the totals of the engines' connectors.
	Connectors []struct {
		CopiedBytes uint64 `json:"copied_bytes"`
	}
}

// tier is a tier of a pool.
type tier struct {
	Capacity, Free int
	Bytes          uint64
}

// pool is a namespace of an agent.
type pool struct {
	Namespace, Model string
	Host, Disk       tier
	Sessions         int
	HostHits         uint64 `json:"host_hits"`
	DiskHits         uint64 `json:"disk_hits"`
	Misses           uint64
	HostEvictions    uint64 `json:"host_evictions"`
	DiskEvictions    uint64 `json:"disk_evictions"`
	BytesRead        uint64 `json:"bytes_read"`
	BytesWritten     uint64 `json:"bytes_written"`
	SealQueue        int    `json:"seal_queue"`
	WriteQueue       int    `json:"write_queue"`
	PromoteQueue     int    `json:"promote_queue"`
}

// look asks all servers. A server that does not answer is in problems.
func (c *Command) look(ctx context.Context) *sample {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	s := &sample{at: time.Now()}
	agents := c.Agents
	if c.Router != "" {
		r, err := c.lookAtRouter(ctx)
		if err != nil {
			s.problems = append(s.problems, "router: "+err.Error())
		} else {
			s.router = r
			for i := 0; i < len(r.Agents) && len(c.Agents) == 0 && len(agents) < maxAgents; i++ {
				agents = append(agents, r.Agents[i].URL)
			}
		}
	}
	found, errs := make([]*agentSample, len(agents)), make([]error, len(agents))
	var asked sync.WaitGroup
	for i, address := range agents {
		asked.Go(func() { found[i], errs[i] = c.lookAtAgent(ctx, address) })
	}
	asked.Wait()
	for i, a := range found {
		if errs[i] != nil {
			s.problems = append(s.problems, "agent: "+errs[i].Error())
		} else {
			s.agents = append(s.agents, a)
		}
	}
	return s
}

// lookAtRouter asks the router for its state and metrics.
func (c *Command) lookAtRouter(ctx context.Context) (*routerSample, error) {
	server, err := c.Open(c.Router)
	if err != nil {
		return nil, err
	}
	r := &routerSample{URL: server.URL}
	for path, into := range map[string]any{"/v1/feeds": &r.Feeds, "/v1/workers": &r.Workers, "/v1/agents": &r.Agents} {
		err := get(ctx, server, path, into)
		if err != nil && (path != "/v1/agents" || !errors.Is(err, inspect.ErrAbsent)) {
			return nil, err
		}
	}
	text, err := server.Text(ctx, "/metrics")
	if err != nil && !errors.Is(err, inspect.ErrAbsent) { // the control socket has none
		return nil, err
	}
	r.Metrics = parseMetrics(string(text))
	return r, nil
}

// lookAtAgent asks an agent for its state.
func (c *Command) lookAtAgent(ctx context.Context, address string) (*agentSample, error) {
	server, err := c.Open(address)
	if err != nil {
		return nil, err
	}
	a := &agentSample{URL: server.URL}
	return a, get(ctx, server, "/v1/stats", a)
}

// get reads the JSON answer of one path.
func get(ctx context.Context, server *inspect.Server, path string, into any) error {
	body, err := server.Get(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s%s: %w", server.URL, path, err)
	}
	return nil
}
