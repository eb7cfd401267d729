package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Bus carries questions and answers between routers.
type Bus interface {
	// Cluster separates deployments on one bus.
	Cluster() string
	// Request returns the answer to a request. The error is a source.AnswerError of the answering side, or
	// says that nobody answers.
	Request(ctx context.Context, subject string, request []byte) ([]byte, error)
	// AnswerGroup answers requests as a member of a group, each of which gets a part of them, one at a time.
	// arrived is when the request came. room is how many may wait; dropped counts those beyond.
	AnswerGroup(group, subject string, room int, answer func(request []byte, arrived time.Time) ([]byte, error)) (stop func(), dropped func() uint64, err error)
}

// Options configure a Client.
type Options struct {
	// Bus must be set.
	Bus Bus
	// Timeout bounds one question; 0 means 100 ms. The routed request waits for the answer.
	Timeout time.Duration
	// Log may be nil.
	Log *zap.Logger
}

const (
	defaultTimeout = 100 * time.Millisecond
	// warnInterval is the least time between two warnings.
	warnInterval = 10 * time.Second
)

// ClientStats is a snapshot of a client's counters. The metric names follow "blockyard_router_".
type ClientStats struct {
	Queries   uint64 `metric:"remote_indexer_queries" help:"Questions to the index of another router."`
	Failures  uint64 `metric:"remote_indexer_failures" help:"Questions to the index of another router without a good answer. The decision counted loads and predictions alone."`
	Skipped   uint64 `metric:"remote_indexer_skipped" help:"Questions that were not asked, because five in a row had failed within the last second."`
	Unknown   uint64 `metric:"remote_indexer_unknown_workers" help:"Workers in answers that this router does not know."`
	Truncated uint64 `metric:"remote_indexer_truncated" help:"Questions of which only the first 65,536 blocks were asked."`
}

// Client asks the routers of a cluster that serve their indexes.
type Client struct {
	options Options
	breaker backoff.Breaker
	start   time.Time
	// lastWarned is when a failure was last logged, in nanoseconds since start.
	lastWarned                                     atomic.Int64
	queries, failures, skipped, unknown, truncated atomic.Uint64
}

// NewClient returns a client.
func NewClient(o Options) *Client {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Log = cmp.Or(o.Log, zap.NewNop())
	c := &Client{options: o, start: time.Now()}
	c.lastWarned.Store(-int64(warnInterval)) // the first failure is logged at once
	return c
}

// Stats returns the counters.
func (c *Client) Stats() ClientStats {
	return ClientStats{Queries: c.queries.Load(), Failures: c.failures.Load(), Skipped: c.skipped.Load(),
		Unknown: c.unknown.Load(), Truncated: c.truncated.Load()}
}

var errPaused = errors.New("five questions in a row have failed: the next one is asked within a second")

// ask returns the answer to a question.
func (c *Client) ask(q *Query) (Answer, error) {
	if !c.breaker.Allows(time.Now()) {
		c.skipped.Add(1)
		return Answer{}, errPaused
	}
	c.queries.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), c.options.Timeout)
	defer cancel()
	b, err := c.options.Bus.Request(ctx, Subject(c.options.Bus.Cluster()), appendQuery(nil, q))
	var a Answer
	if err == nil {
		a, err = decodeAnswer(b, len(q.Locals))
	}
	// A router that refuses a question is alive, and may have the index of other models.
	var refusal source.AnswerError
	c.breaker.Record(err == nil || errors.As(err, &refusal), time.Now())
	if err != nil {
		c.failures.Add(1)
		c.warn(err)
		return Answer{}, fmt.Errorf("remote indexer: %w", err)
	}
	return a, nil
}

// warn logs one failure per warnInterval.
func (c *Client) warn(err error) {
	now := int64(time.Since(c.start))
	if last := c.lastWarned.Load(); now-last >= int64(warnInterval) && c.lastWarned.CompareAndSwap(last, now) {
		c.options.Log.Warn("no router answers for its index; routing continues by load and predictions", zap.Error(err))
	}
}

// Local is the index of a model's workers at this router. It has no blocks. index.Index implements it.
type Local interface {
	Match(dst *index.Matches, locals []kv.LocalHash, r index.Reading)
	Members() *index.Members
	SetMember(w kv.Worker, pool uint64, known bool) error
	Walk(visit func(e *kvevent.RouterEvent) bool)
}

// Index is the index of one model at other routers, with the workers of the local one. It implements
// decide.Index.
type Index struct {
	Local
	client    *Client
	model     string
	blockSize uint32
	quality   atomic.Value // feed.Quality of the last answer
}

// Index returns the index of a model.
func (c *Client) Index(model string, blockSize uint32, local Local) *Index {
	x := &Index{Local: local, client: c, model: model, blockSize: blockSize}
	x.quality.Store(feed.Fallback)
	return x
}

// Quality returns how far the hits of the last question of any request can be trusted. It is feed.Fallback
// after a failure.
func (x *Index) Quality() feed.Quality { return x.quality.Load().(feed.Quality) } //nolint:forcetypeassert // no other type is stored

// Match sets dst.Members to the local workers, dst.Hits to what each of them has of a prompt, as another
// router tells, and dst.Quality to the feed.Quality of the hits. After a failure no worker has a hit, and the
// quality is feed.Fallback. It is at most feed.Degraded when the other router does not know the same workers.
func (x *Index) Match(dst *index.Matches, locals []kv.LocalHash, r index.Reading) {
	x.Local.Match(dst, nil, r)
	if len(locals) == 0 {
		dst.Quality = string(x.Quality())
		return
	}
	if len(locals) > maxBlocks {
		x.client.truncated.Add(1)
		locals = locals[:maxBlocks]
	}
	a, err := x.client.ask(&Query{Model: x.model, BlockSize: x.blockSize, Reading: r,
		MaxTokens: dst.MaxTokens, PrimaryGroup: dst.PrimaryGroup, Locals: locals})
	if err != nil {
		a.Quality = feed.Fallback
	} else if a.Quality == feed.Exact && a.Known != fingerprint(dst.Members) {
		a.Quality = feed.Degraded
	}
	x.quality.Store(a.Quality)
	dst.Quality = string(a.Quality)
	for i := range a.Workers { // in the order of the members
		w := &a.Workers[i]
		if at, ok := dst.Members.Find(w.Worker); !ok {
			x.client.unknown.Add(1)
		} else if w.Hits.Total() > 0 {
			dst.Hits = append(dst.Hits, index.Hit{Member: int32(at), Hits: w.Hits})
		}
	}
}
