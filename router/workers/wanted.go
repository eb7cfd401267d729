package workers

import (
	"context"
	"fmt"
	"maps"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

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
	for i := range d.opt.Specs {
		named(d.opt.Specs[i], FromFlag, false)
	}
	d.mu.Lock()
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
	own := make(map[kv.WorkerID]string) // URLs of the directory's servers
	for _, s := range d.servers {
		own[s.spec.id()] = s.spec.URL
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
