package frontend

import (
	"container/list"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// refuseFor is how long a request is remembered after a worker died with it.
	refuseFor = 10 * time.Minute
	// maxDeaths bounds the remembered requests. The oldest one is forgotten.
	maxDeaths = 4096
	// fatalDeaths is the number of deaths after which a request is refused.
	fatalDeaths = 2
	// oneDeath is how long the failures of one request at one worker count as one death:
	// several clients may have sent the request.
	oneDeath = 5 * time.Second
)

// fingerprint identifies a request by its route and body.
type fingerprint [sha256.Size]byte

// fingerprintOf returns the fingerprint of a request.
func fingerprintOf(path string, body []byte) (f fingerprint) {
	h := sha256.New()
	h.Write([]byte(path))
	h.Write([]byte{0})
	h.Write(body)
	h.Sum(f[:0])
	return f
}

// deaths remembers the requests that were at a worker when it died. It is safe for
// concurrent use.
type deaths struct {
	mu    sync.Mutex
	known map[fingerprint]*list.Element
	// order has the *death values, the oldest first.
	order list.List
}

// death is one remembered request.
type death struct {
	request fingerprint
	count   int
	last    time.Time // of the last death that counted
	worker  kv.Worker // that died last
}

func newDeaths() *deaths { return &deaths{known: make(map[fingerprint]*list.Element)} }

// add records that a worker died with a request and returns how many deaths the request has
// met so far.
func (d *deaths) add(f fingerprint, worker kv.Worker, now time.Time) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expireLocked(now)
	e := d.known[f]
	if e == nil {
		if d.order.Len() == maxDeaths {
			d.removeLocked(d.order.Front())
		}
		e = d.order.PushBack(&death{request: f})
		d.known[f] = e
	}
	one := e.Value.(*death)
	if one.count > 0 && one.worker == worker && now.Sub(one.last) < oneDeath {
		return one.count
	}
	one.count, one.last, one.worker = one.count+1, now, worker
	d.order.MoveToBack(e)
	return one.count
}

// fatal reports whether a request was at two workers that died.
func (d *deaths) fatal(f fingerprint, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expireLocked(now)
	e := d.known[f]
	return e != nil && e.Value.(*death).count >= fatalDeaths
}

// empty reports whether nothing is remembered, so that no fingerprint need be computed.
func (d *deaths) empty() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.order.Len() == 0
}

func (d *deaths) expireLocked(now time.Time) {
	for e := d.order.Front(); e != nil && now.Sub(e.Value.(*death).last) >= refuseFor; e = d.order.Front() {
		d.removeLocked(e)
	}
}

func (d *deaths) removeLocked(e *list.Element) {
	delete(d.known, e.Value.(*death).request)
	d.order.Remove(e)
}

// maxExpected bounds the learned pairs of tenant and model. Further pairs use the mean of
// their model.
const maxExpected = 4096

// outputShare is the weight of a new answer in a learned mean.
const outputShare = 1.0 / 16

// expected learns how many tokens the answers of a tenant and model have. It is safe for
// concurrent use.
type expected struct {
	mu    sync.Mutex
	means map[outputOf]float64
}

// outputOf names a learned mean. An empty tenant is all tenants of the model.
type outputOf struct{ tenant, model string }

func newExpected() *expected { return &expected{means: make(map[outputOf]float64)} }

// tokens returns the expected number of output tokens, at most limit; 0 is unknown. A limit
// of 0 is none.
func (e *expected) tokens(tenant, model string, limit int) int {
	e.mu.Lock()
	mean, ok := e.means[outputOf{tenant, model}]
	if !ok {
		mean = e.means[outputOf{"", model}]
	}
	e.mu.Unlock()
	n := int(mean + 0.5)
	switch {
	case n == 0:
		return limit
	case limit > 0:
		return min(n, limit)
	}
	return n
}

// learn records that an answer had n tokens.
func (e *expected) learn(tenant, model string, n int) {
	if n <= 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.learnLocked(outputOf{"", model}, n)
	if tenant != "" {
		e.learnLocked(outputOf{tenant, model}, n)
	}
}

func (e *expected) learnLocked(of outputOf, n int) {
	mean, ok := e.means[of]
	switch {
	case ok:
		e.means[of] = mean + (float64(n)-mean)*outputShare
	case len(e.means) < maxExpected:
		e.means[of] = float64(n)
	}
}

// maxPinned bounds the remembered responses. The oldest one is forgotten.
const maxPinned = 65536

// pinned remembers which worker has a stored response of /v1/responses, and whose it is. It is
// safe for concurrent use.
type pinned struct {
	mu    sync.Mutex
	known map[string]*list.Element // by the response's id
	order list.List                // of *pinnedResponse, the oldest first
}

type pinnedResponse struct {
	id, tenant string
	worker     kv.Worker
}

func newPinned() *pinned { return &pinned{known: make(map[string]*list.Element)} }

// remember records the worker of a tenant's response. The first tenant with an id keeps it:
// vLLM lets clients choose ids.
func (p *pinned) remember(tenant, id string, w kv.Worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[id] != nil {
		return
	}
	if p.order.Len() == maxPinned {
		oldest := p.order.Front()
		delete(p.known, oldest.Value.(*pinnedResponse).id)
		p.order.Remove(oldest)
	}
	p.known[id] = p.order.PushBack(&pinnedResponse{id, tenant, w})
}

// worker returns the worker of a tenant's response; nil when it is not known, or is another
// tenant's.
func (p *pinned) worker(tenant, id string) *kv.Worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.known[id]; e != nil {
		if r := e.Value.(*pinnedResponse); r.tenant == tenant {
			w := r.worker
			return &w
		}
	}
	return nil
}
