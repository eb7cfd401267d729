package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// MaxWorkers bounds the workers of a directory.
const MaxWorkers = 4096

// Errors that callers tell apart with errors.Is.
var (
	// ErrUnknownModel: no worker serves the model that a request names.
	ErrUnknownModel = errors.New("no worker serves the model")
	// ErrModelRequired: a request names no model, and workers serve several.
	ErrModelRequired = errors.New("model: is required")
	// ErrNoWorkers: no worker that serves the model is ready.
	ErrNoWorkers = errors.New("no worker is ready")
	// ErrUnknownWorker: the directory has no worker of that id.
	ErrUnknownWorker = errors.New("unknown worker")
)

// Registry makes servers without an agent known to the router; *registry.Source
// implements it.
type Registry interface {
	// Register announces a worker for a time, or renews it.
	Register(g *registry.Registration, ttl time.Duration) error
	// Unregister ends the registration of a worker.
	Unregister(worker uint64) bool
	// AnnounceSoon tells the router of changes without delay. It does not wait.
	AnnounceSoon()
}

// Follower has the router follow the KV events of servers without an agent; *zmq.Source
// implements it. Neither call waits for the server.
type Follower interface {
	// Follow follows an engine, or takes over what has changed of it.
	Follow(source.Engine) error
	// Unfollow ends an engine.
	Unfollow(kv.WorkerID)
}

// Found is a server that a Finder has found.
type Found struct {
	Spec
	// Leaving is true for a server that finishes its requests and gets no new ones.
	Leaving bool
}

// Finder finds servers.
type Finder interface {
	// Source names the finder in Worker.Source.
	Source() string
	// Run calls set with all servers at each change, until ctx ends. It goes on after
	// errors, with the servers that it knew.
	Run(ctx context.Context, set func([]Found)) error
}

// Options configure a Directory. The zero value has no servers.
type Options struct {
	// Specs are servers that a person named.
	Specs []Spec
	// Finders find more. Of several servers with one URL the first counts: Specs, then
	// Finders in their order.
	Finders []Finder
	// Known returns the workers of the router, by id; nil without a router. Workers with an
	// Endpoint are servers of the directory too.
	Known func() []Known
	// Registry is told of ready servers that no agent announces; nil tells nobody.
	Registry Registry
	// Follower is told of ready servers that publish events and that no agent announces.
	// Such servers are not registered. nil registers all.
	Follower Follower
	// BlockSize is for servers that do not tell theirs; 0 is unknown.
	BlockSize uint32
	// ProbeEvery is the period of probes of a ready server; 0 means 2 s. ProbeTimeout
	// bounds one question to a server; 0 means 5 s.
	ProbeEvery, ProbeTimeout time.Duration
	// SlowStart is how long the share of a server grows after it became ready; 0 is off.
	SlowStart time.Duration
	// Client asks the servers; nil means a client of the directory's own.
	Client *http.Client
	// Log may be nil.
	Log *zap.Logger
}

// Validate returns an error for the first option out of range, and for two servers with one URL
// or one id.
func (o *Options) Validate() error {
	if o.ProbeEvery < 0 || o.ProbeTimeout < 0 || o.SlowStart < 0 {
		return fmt.Errorf("probe period %v, probe timeout %v, slow start %v: one is negative", o.ProbeEvery, o.ProbeTimeout, o.SlowStart)
	}
	return checkSpecs(o.Specs)
}

// checkSpecs returns an error for too many servers, and for two with one URL or one id.
func checkSpecs(specs []Spec) error {
	if len(specs) > MaxWorkers {
		return fmt.Errorf("workers: %d of them, want at most %d", len(specs), MaxWorkers)
	}
	urls, ids := make(map[string]bool), make(map[kv.WorkerID]bool)
	for i := range specs {
		s := &specs[i]
		if urls[s.URL] {
			return fmt.Errorf("workers[%d]: %s is there twice", i, s.URL)
		}
		if ids[s.id()] {
			return fmt.Errorf("workers[%d]: id %d is there twice", i, uint64(s.id()))
		}
		urls[s.URL], ids[s.id()] = true, true
	}
	return nil
}

// withDefaults returns o with the defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.ProbeEvery = cmp.Or(o.ProbeEvery, 2*time.Second)
	o.ProbeTimeout = cmp.Or(o.ProbeTimeout, 5*time.Second)
	if o.Client == nil {
		o.Client = newClient()
	}
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return o
}

// Directory is the directory of worker servers. Make one with New and run it with Run. Its
// methods may be called from any goroutine; the ones that read take no lock.
type Directory struct {
	opt Options
	log *zap.Logger
	now atomic.Pointer[snapshot]

	// dirty is filled when a server has changed.
	dirty chan struct{}
	// found has one entry for each finder that has called set. specs are the servers that a person
	// named. mu guards both.
	mu     sync.Mutex
	found  map[int][]Found
	specs  []Spec
	looked chan struct{}

	// servers are the servers by key. Only Run's goroutine uses them and full.
	servers map[string]*server
	running sync.WaitGroup
	full    bool
	known   map[kv.WorkerID]*Known
}

// New returns a directory of the servers that the options name. All are Starting until Run
// probes them.
func New(o Options) (*Directory, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d := &Directory{
		opt: o.withDefaults(), dirty: make(chan struct{}, 1), looked: make(chan struct{}, 1),
		found: make(map[int][]Found), servers: make(map[string]*server), specs: o.Specs,
	}
	d.log = d.opt.Log
	d.reconcile(context.Background(), false)
	return d, nil
}

const (
	// knownEvery is the period of looking at the router's workers.
	knownEvery = time.Second
	// publishGap is the shortest time between two snapshots.
	publishGap = 10 * time.Millisecond
)

// Run finds and probes servers, and tells the router about them, until ctx ends. Then it ends
// their registrations and returns nil. It returns an error when a finder fails.
func (d *Directory) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer d.opt.Client.CloseIdleConnections()
	defer d.running.Wait()
	var finders sync.WaitGroup
	defer finders.Wait()
	defer cancel(nil)
	for i, f := range d.opt.Finders {
		finders.Go(func() {
			if err := f.Run(ctx, func(all []Found) { d.setFound(i, all) }); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", f.Source(), err))
			}
		})
	}
	ticker := time.NewTicker(knownEvery)
	defer ticker.Stop()
	d.reconcile(ctx, true)
	for {
		select {
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			return nil
		case <-d.dirty:
			d.publish()
			// Changes that come together make one snapshot.
			if !backoff.Wait(ctx, publishGap) {
				continue
			}
		case <-d.looked:
			d.reconcile(ctx, true)
		case <-ticker.C:
			d.reconcile(ctx, true)
			if d.now.Load().growing {
				d.publish()
			}
		}
	}
}

// SetSpecs replaces the servers that a person named. A server that stays keeps its state; one that goes
// gets no new requests, and its requests go on. The error is one of Options.Validate, and then nothing
// has changed.
func (d *Directory) SetSpecs(specs []Spec) error {
	if err := checkSpecs(specs); err != nil {
		return err
	}
	d.mu.Lock()
	d.specs = slices.Clone(specs)
	d.mu.Unlock()
	notify(d.looked)
	return nil
}

// setFound replaces what one finder has found.
func (d *Directory) setFound(finder int, all []Found) {
	d.mu.Lock()
	d.found[finder] = all
	d.mu.Unlock()
	notify(d.looked)
}

// notify fills c, a channel of length 1, and does nothing when it is full: a notice waits already.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Known is a worker that the router knows.
type Known struct {
	ID kv.WorkerID
	// FirstRank and Ranks are the ranks that the router may choose.
	FirstRank, Ranks uint32
	Model            string
	BlockSize        uint32
	DeviceBlocks     uint64
	// Pool is the agent's pool that keeps the worker's blocks; 0 is none. Workers of one pool
	// are on one node and can load each other's blocks.
	Pool uint64
	// MaxBatchedTokens is how many tokens a rank computes in a step; 0 is unknown.
	MaxBatchedTokens uint64
	// Endpoint is where the engine takes requests; it may be empty.
	Endpoint string
	// Source is FromAgent, FromFile, FromRegistration, FromEvents, or the name of a source of
	// events such as dynamo.
	Source string
}

// wanted is a server that the directory should have.
type wanted struct {
	spec    Spec
	source  string
	leaving bool
	// known is the router's worker that the server is; nil when the directory registers it.
	known *Known
}

// reconcile adds and ends servers until the directory has exactly the wanted ones. start is false
// only in New: then the servers are not probed yet. Only the goroutine of Run calls it later.
func (d *Directory) reconcile(ctx context.Context, start bool) {
	want := d.wanted()
	ended := make(map[string]*server) // by URL
	for key, s := range d.servers {
		if w, ok := want[key]; !ok || !s.same(w) {
			s.end()
			delete(d.servers, key)
			ended[s.spec.URL] = s
			notify(d.dirty)
		}
	}
	for key, w := range want {
		s := d.servers[key]
		if s == nil {
			s = d.newServer(w)
			// Another source may name the same server. With another API key it is asked anew.
			if before := ended[w.spec.URL]; before != nil && before.spec.key == w.spec.key {
				s.adopt(before)
			}
			d.servers[key] = s
			notify(d.dirty)
		}
		s.update(w)
		if start {
			s.start(ctx)
		}
	}
	if !start {
		d.publish()
	}
}

// wanted returns the servers that the directory should have: first those of the flags, then those of
// the finders, then the workers of the router that have an endpoint. The key is the URL, or the
// worker's id for a worker that only the router knows. The first of several servers with one key or
// one id counts.
func (d *Directory) wanted() map[string]*wanted {
	all := make(map[string]*wanted)
	ids := make(map[kv.WorkerID]bool)
	byURL := d.refreshKnown()
	full := false
	add := func(key string, id kv.WorkerID, w *wanted) {
		switch {
		case all[key] != nil || ids[id]:
		case len(all) >= MaxWorkers:
			full = true
		default:
			all[key], ids[id] = w, true
		}
	}
	named := func(s Spec, source string, leaving bool) {
		w := &wanted{spec: s, source: source, leaving: leaving}
		id := s.id()
		// A server that the router knows already keeps the router's id and source. It is known by
		// its id, or by its URL if no flag fixes the id.
		if w.known = d.known[id]; w.known == nil && s.ID == 0 {
			w.known = byURL[s.URL]
		}
		if w.known != nil {
			id, w.source = w.known.ID, w.known.Source
		}
		add(s.URL, id, w)
	}
	d.mu.Lock()
	for i := range d.specs {
		named(d.specs[i], FromFlag, false)
	}
	for i, f := range d.opt.Finders {
		for _, s := range d.found[i] {
			named(s.Spec, f.Source(), s.Leaving)
		}
	}
	d.mu.Unlock()
	for id, k := range d.known {
		if k.Endpoint == "" {
			continue
		}
		if url, err := CleanURL(k.Endpoint); err == nil {
			add(fmt.Sprintf("id:%d", uint64(id)), id, &wanted{spec: Spec{URL: url, ID: id}, source: k.Source, known: k})
		}
	}
	if full && !d.full {
		d.log.Warn("there are too many workers; the further ones get no requests", zap.Int("limit", MaxWorkers))
	}
	d.full = full
	return all
}

// refreshKnown sets d.known to the workers that the router has from other sources than this
// directory. It returns those with an endpoint, by URL. The first of several workers with one URL
// counts.
func (d *Directory) refreshKnown() map[string]*Known {
	byURL := make(map[string]*Known)
	if d.opt.Known == nil {
		return byURL
	}
	before := d.known
	d.known = make(map[kv.WorkerID]*Known)
	defer func() {
		if !maps.EqualFunc(before, d.known, func(a, b *Known) bool { return *a == *b }) {
			notify(d.dirty) // Which workers of the router are ready has changed.
		}
	}()
	own := make(map[kv.WorkerID]string) // URLs of the servers that flags and finders name
	for key, s := range d.servers {
		if key == s.spec.URL {
			own[s.spec.id()] = s.spec.URL
		}
	}
	for _, k := range d.opt.Known() {
		url, err := CleanURL(k.Endpoint)
		if (k.Source == FromRegistration || k.Source == FromEvents) && err == nil && own[k.ID] == url {
			continue // This directory told the router about the worker.
		}
		d.known[k.ID] = &k
		if err == nil && byURL[url] == nil {
			byURL[url] = &k
		}
	}
	return byURL
}
