package router

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decisions"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/metrics"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/policyfile"
	"github.com/blockyard-ai/blockyard/router/remote"
	"github.com/blockyard-ai/blockyard/router/replica"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
	"github.com/blockyard-ai/blockyard/router/sharedcache"
)

var (
	// ErrUnknownModel says that no worker serves the model of a request.
	ErrUnknownModel = errors.New("no worker serves the model")
	// ErrModelRequired says that a request names no model, but workers serve several.
	ErrModelRequired = errors.New("model: is required")
)

// Models is the directory of a router's models. Package feed opens a model with its first
// publisher and retires it when it has neither publishers nor workers. Requests find
// their model by name.
type Models struct {
	options      *Options
	shared       *sharedcache.Client // of the configuration; nil without one or with Options.SharedCache
	replicas     *replica.Sync       // nil without router_replica_sync
	remote       *remote.Client      // nil without use_remote_indexer
	metrics      *metrics.Metrics
	hints        *readAhead // nil when the transport sends none
	unbookedOnce sync.Once
	// memory remembers the blocks that left the indexes; nil when no misses are explained.
	memory *miss.Memory
	misses miss.Log
	// decisions are the last ones of all models.
	decisions decisions.Log

	// routes is read by requests without a lock.
	routes atomic.Pointer[routes]

	mu    sync.Mutex
	byKey map[feed.ModelKey]*Model
	// busy are the thresholds of models opened later; nil means those of the configuration.
	busy *schedule.BusyThresholds
	// retired has the counters of retired models.
	retired ModelStats
	// balanced is when the memory was last divided.
	balanced time.Time
}

// routes finds the model of a request. It is immutable.
type routes struct {
	// all are the open models, ordered by key.
	all []*Model
	// byName has the models with workers. For several block sizes of one name see
	// preferredOver.
	byName map[string]*Model
	// unnamed is the model of requests without a name: the only one of the highest rank. It
	// is nil without one.
	unnamed *Model
}

func newModels(o *Options, shared *sharedcache.Client, replicas *replica.Sync, ask *remote.Client) *Models {
	d := &Models{options: o, shared: shared, replicas: replicas, remote: ask, byKey: make(map[feed.ModelKey]*Model)}
	if n := o.Config.MissMemoryBlocks; n > 0 && o.Config.ShouldSubscribeToKVEvents() {
		d.memory = miss.NewMemory(int(n), time.Now())
	}
	d.routes.Store(&routes{})
	return d
}

// Open implements feed.Models: it makes a model without workers, when the model's first
// publisher comes. The error is feed.ErrTooManyModels when limit models are open, or one of
// the model's parts.
func (d *Models) Open(key feed.ModelKey, limit int) (feed.Model, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.byKey) >= limit {
		return nil, feed.ErrTooManyModels
	}
	m, err := d.newModel(key)
	if err != nil {
		return nil, err
	}
	if m.misses = &d.misses; d.memory != nil {
		m.history = d.memory.Of()
	}
	m.hints, m.decisions = d.hints, &d.decisions
	if d.busy != nil {
		// setBusy has validated the thresholds.
		_ = m.scheduler.SetBusy(*d.busy)
	}
	d.byKey[key] = m
	d.balanceLocked()
	d.routeLocked()
	return m, nil
}

// newModel returns a model without workers. Its bookings are shared with other routers if the
// configuration says so.
func (d *Models) newModel(key feed.ModelKey) (*Model, error) {
	if d.replicas == nil {
		return newModel(key, d, nil)
	}
	shared := replica.Model{Name: key.Name, BlockSize: key.BlockSize}
	m, err := newModel(key, d, d.replicas.Open(shared))
	if err != nil {
		d.replicas.Close(shared)
		return nil, err
	}
	d.replicas.Join(shared, m.scheduler)
	return m, nil
}

// Retire implements feed.Models: it closes a model without publishers, workers and requests.
// Its counters stay in the sums of all models.
func (d *Models) Retire(followed feed.Model) error {
	m := followed.(*Model) // every feed.Model comes from Open
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byKey, m.key)
	if d.replicas != nil {
		d.replicas.Leave(replica.Model{Name: m.key.Name, BlockSize: m.key.BlockSize})
	}
	s := m.stats()
	d.retired.addCounters(&s)
	d.balanceLocked()
	d.routeLocked()
	return m.close()
}

// Changed implements feed.Models. It publishes new routes.
func (d *Models) Changed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.routeLocked()
}

// routeLocked publishes which model a request goes to, by the name that the request gives or
// without a name. Call it after a change of the models or of their workers. The caller holds
// d.mu.
func (d *Models) routeLocked() {
	r := &routes{byName: make(map[string]*Model)}
	r.all = slices.SortedFunc(maps.Values(d.byKey), func(a, b *Model) int {
		return cmp.Or(strings.Compare(a.key.Name, b.key.Name), cmp.Compare(a.key.BlockSize, b.key.BlockSize))
	})
	for _, m := range r.all {
		if have := r.byName[m.key.Name]; m.rank() > 0 && (have == nil || m.preferredOver(have)) {
			r.byName[m.key.Name] = m
		}
	}
	// A request without a name goes to the only model of the highest rank.
	best, rivals := 1, 0
	for _, m := range r.byName {
		switch rank := m.rank(); {
		case rank > best || rank == best && rivals == 0:
			best, rivals, r.unnamed = rank, 1, m
		case rank == best:
			rivals++
			r.unnamed = nil
		}
	}
	d.routes.Store(r)
}

// rank ranks models for requests: 2 with a worker that publishes, 1 with workers that a
// program only registered, 0 without workers. A mistaken registration must not take requests
// without a model name from a published model.
func (m *Model) rank() int {
	v := m.current.Load()
	switch {
	case v.Published > 0:
		return 2
	case v.Workers > 0:
		return 1
	}
	return 0
}

// preferredOver reports whether requests of the models' common name go to m instead of o. The
// higher rank wins, then more workers, then the larger block size.
func (m *Model) preferredOver(o *Model) bool {
	return cmp.Or(cmp.Compare(m.rank(), o.rank()), cmp.Compare(m.current.Load().Workers, o.current.Load().Workers),
		cmp.Compare(m.key.BlockSize, o.key.BlockSize)) > 0
}

// find returns the model that a request with this model name goes to. An empty name means the
// only model. The error is ErrNoWorkers, or ErrModelRequired or ErrUnknownModel with the
// names of the models that workers serve. find takes no lock.
func (d *Models) find(name string) (*Model, error) {
	r := d.routes.Load()
	if name == "" {
		if r.unnamed == nil && len(r.byName) > 0 {
			return nil, fmt.Errorf("%w: workers serve %s", ErrModelRequired, r.names())
		}
		if r.unnamed == nil {
			return nil, ErrNoWorkers
		}
		return r.unnamed, nil
	}
	if m := r.byName[name]; m != nil {
		return m, nil
	}
	// An open model that byName lacks has lost its workers, which may come back.
	if len(r.byName) == 0 || len(r.named(name)) > 0 {
		return nil, fmt.Errorf("model %.64q: %w", name, ErrNoWorkers)
	}
	return nil, fmt.Errorf("model: %.64q: %w: workers serve %s", name, ErrUnknownModel, r.names())
}

// named returns the open models of a name, which differ in their block sizes, or all open
// models for an empty name. Models without workers are included.
func (r *routes) named(name string) []*Model {
	if name == "" {
		return r.all
	}
	var out []*Model
	for _, m := range r.all {
		if m.key.Name == name {
			out = append(out, m)
		}
	}
	return out
}

// names lists the names of the models with workers, for errors: at most eight, and how many
// more there are.
func (r *routes) names() string {
	const limit = 8
	names := slices.Sorted(maps.Keys(r.byName))
	more := ""
	if len(names) > limit {
		names, more = names[:limit], fmt.Sprintf(" and %d more", len(names)-limit)
	}
	return fmt.Sprintf("%q%s", names, more)
}

// all returns the open models, ordered by name and block size.
func (d *Models) all() []*Model { return d.routes.Load().all }

// workers returns the number of workers of all models. Ranks of one worker count once.
func (d *Models) workers() (n int) {
	for _, m := range d.all() {
		n += m.decide.Workers()
	}
	return n
}

// quality returns the worst quality of the models with workers: how far their indexes can be
// trusted. It is feed.Fallback without such a model.
func (d *Models) quality() feed.Quality {
	q, any := feed.Exact, false
	for _, m := range d.routes.Load().byName {
		q, any = worse(q, m.Quality()), true
	}
	if !any {
		return feed.Fallback
	}
	return q
}

// setBusy replaces the busy thresholds, beyond which a worker gets no requests, in the open
// models of a name. An empty name means all models, and those opened later. The error names
// the threshold that is out of range, and then nothing has changed.
func (d *Models) setBusy(name string, b schedule.BusyThresholds) error {
	if err := b.Validate(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if name == "" {
		d.busy = &b
	}
	for key, m := range d.byKey {
		if name == "" || key.Name == name {
			if err := m.scheduler.SetBusy(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// reload gives the open models the queue and the busy thresholds of a valid configuration and a policy
// file, and those opened later its live settings. The error names the setting, or the model whose queue is
// out of range; nothing has changed then.
func (d *Models) reload(c *config.Config, policies *policyfile.File) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	busy := c.Busy()
	if err := busy.Validate(); err != nil {
		return err
	}
	queues := make(map[feed.ModelKey]queue.Options, len(d.byKey))
	for key := range d.byKey {
		q := c.Queue(policies.Profile(key.Name))
		if err := q.Validate(); err != nil {
			return fmt.Errorf("model %.64q: %w", key.Name, err)
		}
		queues[key] = q
	}
	// Everything is valid: no call below fails.
	if !reflect.DeepEqual(busy, d.options.Config.Busy()) {
		d.busy = nil
		for _, m := range d.byKey {
			_ = m.scheduler.SetBusy(busy)
		}
	}
	options := *d.options
	options.Config, options.Policies = c, policies
	d.options = &options
	for key, m := range d.byKey {
		_ = m.scheduler.SetQueue(queues[key])
	}
	return nil
}

// busyOf returns the busy thresholds of a model, beyond which its workers get no requests.
// An empty name means models opened later. The error is one of find.
func (d *Models) busyOf(name string) (schedule.BusyThresholds, error) {
	if name != "" {
		m, err := d.find(name)
		if err != nil {
			return schedule.BusyThresholds{}, err
		}
		return m.scheduler.Busy(), nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy != nil {
		return *d.busy, nil
	}
	return d.options.Config.Busy(), nil
}

// balanceEvery is the period of balance.
const balanceEvery = time.Second

// balance divides the memory limit among the models' indexes by their present sizes. Run
// calls it at each tick, and it acts once per balanceEvery.
func (d *Models) balance(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Sub(d.balanced) >= balanceEvery {
		d.balanced = now
		d.balanceLocked()
	}
}

// balanceLocked limits each index to the memory that the other indexes do not use, but at
// least to an equal share. An index never frees memory, so the sum may exceed the limit when
// a model joins a large one. The caller holds d.mu.
func (d *Models) balanceLocked() {
	if len(d.byKey) == 0 {
		return
	}
	whole := d.options.Config.Index().MaxBytes
	share := whole / int64(len(d.byKey))
	var used int64
	bytes := make(map[*Model]int64, len(d.byKey))
	for _, m := range d.byKey {
		bytes[m] = m.index.Bytes()
		used += bytes[m]
	}
	for m, own := range bytes {
		m.index.SetMaxBytes(max(share, whole-(used-own)))
	}
}

// withRequest calls f with each model of a name, or with every model, until f returns true.
func (d *Models) withRequest(name string, f func(m *Model) bool) bool {
	return slices.ContainsFunc(d.routes.Load().named(name), f)
}
