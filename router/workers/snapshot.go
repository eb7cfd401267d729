package workers

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// snapshot is what readers see. It is immutable.
type snapshot struct {
	workers []*Worker
	byID    map[kv.WorkerID]entry
	names   map[string]*named
	models  []Model
	// bases are the models of the router with ready workers, in order.
	bases []string
	// growing is true while a share grows.
	growing bool
	// replaced is closed when the next snapshot is there.
	replaced chan struct{}
}

// entry is one worker of a snapshot.
type entry struct {
	worker *Worker
	server *server
}

// named is what a model name means.
type named struct {
	served Served
	// ready are the ready workers that serve the name.
	ready      []*Worker
	tokenizers []*Worker
	// allowed are the ready workers that may serve a request whole or decode it, prefill those
	// that only prefill.
	allowed choice
	prefill map[kv.WorkerID]struct{}
}

// choice is the workers that may be chosen. steps exclude workers whose share is still
// growing.
type choice struct {
	all   map[kv.WorkerID]struct{}
	steps []step
}

// step is the set for draws below share.
type step struct {
	share float64
	set   map[kv.WorkerID]struct{}
}

// draw returns the workers that one request may go to; nil means every worker of the router. A
// worker in its slow start is in the set with the probability of its share.
func (c *choice) draw() map[kv.WorkerID]struct{} {
	if len(c.steps) == 0 {
		return c.all
	}
	u := rand.Float64()
	for _, s := range c.steps {
		if u < s.share {
			return s.set
		}
	}
	return c.steps[len(c.steps)-1].set
}

// Worker returns a worker.
func (d *Directory) Worker(id kv.WorkerID) (*Worker, bool) {
	e, ok := d.now.Load().byID[id]
	return e.worker, ok
}

// Workers returns all workers, ordered by id. Callers must not change the slice.
func (d *Directory) Workers() []*Worker { return d.now.Load().workers }

// Models returns the models and adapters of the ready workers, ordered by name.
func (d *Directory) Models() []Model { return d.now.Load().models }

// Changed returns a channel that is closed when the workers have changed.
func (d *Directory) Changed() <-chan struct{} { return d.now.Load().replaced }

// AllowedFor returns the ids of the ready workers that serve a model or adapter and do not
// only prefill; nil when that is every worker that the router has for it. Callers must not
// change the map.
func (d *Directory) AllowedFor(model string) map[kv.WorkerID]struct{} {
	n := d.now.Load().names[model]
	if n == nil {
		return map[kv.WorkerID]struct{}{}
	}
	return n.allowed.draw()
}

// PrefillFor returns the ids of the ready workers that only prefill for a model or adapter.
// Callers must not change the map.
func (d *Directory) PrefillFor(model string) map[kv.WorkerID]struct{} {
	if n := d.now.Load().names[model]; n != nil {
		return n.prefill
	}
	return nil
}

// Tokenizers returns the ready workers that serve a model and turn prompts into tokens, the
// ones with Facts.Render first.
func (d *Directory) Tokenizers(model string) []*Worker {
	if n := d.now.Load().names[model]; n != nil {
		return n.tokenizers
	}
	return nil
}

// Resolve returns what a model name means. An empty name means the only model. The error
// wraps ErrUnknownModel, ErrModelRequired or ErrNoWorkers.
func (d *Directory) Resolve(model string) (Served, error) {
	now := d.now.Load()
	if model == "" {
		switch len(now.bases) {
		case 0:
			return Served{}, ErrNoWorkers
		case 1:
			model = now.bases[0]
		default:
			return Served{}, fmt.Errorf("%w: workers serve %s", ErrModelRequired, listed(now.bases))
		}
	}
	n := now.names[model]
	switch {
	case n != nil && len(n.ready) > 0:
		return n.served, nil
	case n != nil || len(now.names) == 0: // the model may come when its servers are ready
		return Served{}, fmt.Errorf("model %.64q: %w", model, ErrNoWorkers)
	}
	return Served{}, fmt.Errorf("model: %.64q: %w: workers serve %s", model, ErrUnknownModel, listed(now.bases))
}

// listed returns names for the text of an error: at most 8, and how many more there are.
func listed(names []string) string {
	const most = 8
	more := ""
	if len(names) > most {
		names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	return fmt.Sprintf("%q%s", names, more)
}

// publish makes a snapshot of the servers as they are now.
func (d *Directory) publish() {
	before := d.now.Load()
	d.now.Store(d.snapshot(time.Now()))
	if before != nil {
		close(before.replaced)
	}
}

// snapshot returns a new snapshot of all servers: the workers by id and by model name, and the
// sets of workers that requests may go to. Only the goroutine of Run calls it, and New.
func (d *Directory) snapshot(now time.Time) *snapshot {
	v := &snapshot{byID: make(map[kv.WorkerID]entry), names: make(map[string]*named), replaced: make(chan struct{})}
	for _, s := range d.servers {
		w := s.current.Load()
		v.workers = append(v.workers, w)
		v.byID[w.ID] = entry{w, s}
	}
	for _, s := range d.servers {
		// Requests that began under the server's own id end under it.
		if _, taken := v.byID[s.spec.id()]; !taken {
			v.byID[s.spec.id()] = entry{s.current.Load(), s}
		}
	}
	slices.SortFunc(v.workers, func(a, b *Worker) int { return cmp.Compare(a.ID, b.ID) })
	v.nameModels()
	shares := d.shares(v, now)
	v.growing = len(shares) > 0
	unknown := make(map[string]bool) // models with workers that must not be chosen
	for id, k := range d.known {
		if e, ok := v.byID[id]; !ok || e.worker.State != Ready {
			unknown[k.Model] = true
		}
	}
	for _, w := range v.workers {
		if w.State != Ready {
			unknown[w.Model] = true
		}
	}
	for _, n := range v.names {
		// An adapter may be served by fewer workers than its base model.
		whole := n.split()
		every := !unknown[n.served.Model] && len(whole) == len(v.names[n.served.Model].ready)
		n.allowed = choiceOf(whole, every, shares)
	}
	return v
}

// split fills n.prefill and returns the ready workers that do not only prefill.
func (n *named) split() (whole []*Worker) {
	for _, w := range n.ready {
		if w.Role != RolePrefill {
			whole = append(whole, w)
			continue
		}
		if n.prefill == nil {
			n.prefill = make(map[kv.WorkerID]struct{})
		}
		n.prefill[w.ID] = struct{}{}
	}
	return whole
}

// nameModels sets v.names (what each model name means), v.models (the served models) and v.bases
// (the names of base models), from v.workers in the order of their ids.
func (v *snapshot) nameModels() {
	bases := make(map[string]bool)
	for _, w := range v.workers {
		for _, m := range w.Models {
			v.name(w, m)
		}
		if w.State == Ready {
			bases[w.Model] = true
		}
	}
	v.bases = slices.Sorted(maps.Keys(bases))
	for _, name := range slices.Sorted(maps.Keys(v.names)) {
		n := v.names[name]
		if len(n.ready) == 0 {
			continue
		}
		m, _ := n.ready[0].serves(name)
		m.MaxLen = n.served.MaxLen
		v.models = append(v.models, m)
		for _, w := range n.ready {
			if w.Facts.Render || w.Facts.Tokenize {
				n.tokenizers = append(n.tokenizers, w)
			}
		}
		slices.SortStableFunc(n.tokenizers, func(a, b *Worker) int { return tokenizerOrder(a) - tokenizerOrder(b) })
	}
}

// tokenizerOrder is the key by which tokenizers are sorted: servers that render chat templates come
// first.
func tokenizerOrder(w *Worker) int {
	if w.Facts.Render {
		return 0
	}
	return 1
}

// name adds the model m of w to v.names. Workers may mean different models by one name: then the
// ready one with the lowest id counts. The shortest known context length of the ready workers
// counts.
func (v *snapshot) name(w *Worker, m Model) {
	served := Served{Model: w.Model, MaxLen: m.MaxLen}
	if m.Base != "" {
		served.LoRA = m.Name
		if base, ok := w.serves(m.Base); ok && served.MaxLen == 0 {
			served.MaxLen = base.MaxLen
		}
	}
	n := v.names[m.Name]
	if n == nil {
		n = &named{served: served}
		v.names[m.Name] = n
	}
	if w.State != Ready {
		return
	}
	same := n.served.Model == served.Model && n.served.LoRA == served.LoRA
	switch {
	case len(n.ready) == 0:
		n.served = served
	case !same:
		return
	case n.served.MaxLen == 0 || served.MaxLen > 0 && served.MaxLen < n.served.MaxLen:
		n.served.MaxLen = served.MaxLen
	}
	n.ready = append(n.ready, w)
}

// shares returns the shares of workers in their slow start. A share is the probability, below 1,
// that a request may go to the worker; it grows with the time since the worker became ready. It
// is relative to the largest share of the model, so that at least one worker may get every
// request.
func (d *Directory) shares(v *snapshot, now time.Time) map[kv.WorkerID]float64 {
	if d.opt.SlowStart <= 0 {
		return nil
	}
	share := func(w *Worker) float64 {
		const least = 0.05 // a new worker gets some requests at once
		return min(1, max(least, now.Sub(w.Since).Seconds()/d.opt.SlowStart.Seconds()))
	}
	most := make(map[string]float64)
	for _, w := range v.workers {
		if w.State == Ready {
			most[w.Model] = max(most[w.Model], share(w))
		}
	}
	shares := make(map[kv.WorkerID]float64)
	for _, w := range v.workers {
		if w.State != Ready {
			continue
		}
		if s := share(w) / most[w.Model]; s < 1 {
			shares[w.ID] = s
		}
	}
	return shares
}

// choiceOf returns the sets of workers of which each request draws one. shares has, for workers that
// became ready a short time ago, the probability with which a request may go to them; every request
// may go to the others. every is true when ready has all workers that the router may choose: then an
// empty choice, which allows all, saves a set.
func choiceOf(ready []*Worker, every bool, shares map[kv.WorkerID]float64) choice {
	var growing []float64
	for _, w := range ready {
		if s, ok := shares[w.ID]; ok {
			growing = append(growing, s)
		}
	}
	if len(growing) == 0 {
		if every {
			return choice{}
		}
		return choice{all: setOf(ready, nil, 0)}
	}
	// A request draws a number in 0..1. There is a set for each range of numbers between two shares:
	// the workers whose share is above the range.
	slices.Sort(growing)
	c := choice{}
	below := 0.0
	for _, s := range append(slices.Compact(growing), 1) {
		c.steps = append(c.steps, step{share: s, set: setOf(ready, shares, below)})
		below = s
	}
	return c
}

// setOf returns the ids of ready workers without a share, and of those with a share above below:
// the set for a draw of at least below.
func setOf(ready []*Worker, shares map[kv.WorkerID]float64, below float64) map[kv.WorkerID]struct{} {
	set := make(map[kv.WorkerID]struct{}, len(ready))
	for _, w := range ready {
		if s, ok := shares[w.ID]; !ok || s > below {
			set[w.ID] = struct{}{}
		}
	}
	return set
}

// Stats counts the workers by state.
type Stats struct {
	Starting  int   `metric:"starting" help:"Worker servers that have never answered."`
	Ready     int   `metric:"ready" help:"Worker servers that take requests."`
	Draining  int   `metric:"draining" help:"Worker servers that finish their requests and get no new ones."`
	Unhealthy int   `metric:"unhealthy" help:"Worker servers that do not answer, or whose last requests failed."`
	Inflight  int64 `metric:"requests_in_flight" help:"Requests that worker servers have now."`
}

// Stats returns how many workers are in each state, and the requests in progress.
func (d *Directory) Stats() (s Stats) {
	for _, e := range d.now.Load().byID {
		switch e.worker.State {
		case Starting:
			s.Starting++
		case Ready:
			s.Ready++
		case Draining:
			s.Draining++
		case Unhealthy:
			s.Unhealthy++
		}
		s.Inflight += e.server.inflight.Load()
	}
	return s
}
