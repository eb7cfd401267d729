package memory

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
	// FatalDeaths is the number of deaths after which a request is refused.
	FatalDeaths = 2
	// oneDeath is how long the failures of one request at one worker count as one death:
	// several clients may have sent the request.
	oneDeath = 5 * time.Second
)

// Fingerprint identifies a request by its route and body.
type Fingerprint [sha256.Size]byte

// FingerprintOf returns the Fingerprint of a request.
func FingerprintOf(path string, body []byte) (f Fingerprint) {
	h := sha256.New()
	h.Write([]byte(path))
	h.Write([]byte{0})
	h.Write(body)
	h.Sum(f[:0])
	return f
}

// Deaths remembers the requests that were at a worker when it died. It is safe for
// concurrent use.
type Deaths struct {
	mu    sync.Mutex
	known map[Fingerprint]*list.Element
	// order has the *death values, the oldest first.
	order list.List
}

// death is one remembered request.
type death struct {
	request Fingerprint
	count   int
	last    time.Time // of the last death that counted
	worker  kv.Worker // that died last
}

// NewDeaths returns a memory without deaths.
func NewDeaths() *Deaths { return &Deaths{known: make(map[Fingerprint]*list.Element)} }

// Add records that a worker died with a request and returns how many deaths the request has
// met so far.
func (d *Deaths) Add(f Fingerprint, worker kv.Worker, now time.Time) int {
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

// Fatal reports whether a request was at two workers that died.
func (d *Deaths) Fatal(f Fingerprint, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expireLocked(now)
	e := d.known[f]
	return e != nil && e.Value.(*death).count >= FatalDeaths
}

// Empty reports whether nothing is remembered, so that no Fingerprint need be computed.
func (d *Deaths) Empty() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.order.Len() == 0
}

func (d *Deaths) expireLocked(now time.Time) {
	for e := d.order.Front(); e != nil && now.Sub(e.Value.(*death).last) >= refuseFor; e = d.order.Front() {
		d.removeLocked(e)
	}
}

func (d *Deaths) removeLocked(e *list.Element) {
	delete(d.known, e.Value.(*death).request)
	d.order.Remove(e)
}

// maxLengths bounds the learned pairs of tenant and model. Further pairs use the mean of
// their model.
const maxLengths = 4096

// outputShare is the weight of a new answer in a learned mean.
const outputShare = 1.0 / 16

// Lengths learns how many tokens the answers of a tenant and model have. It is safe for
// concurrent use.
type Lengths struct {
	mu    sync.Mutex
	means map[outputOf]float64
}

// outputOf names a learned mean. An empty tenant is all tenants of the model.
type outputOf struct{ tenant, model string }

// NewLengths returns a memory without answers.
func NewLengths() *Lengths { return &Lengths{means: make(map[outputOf]float64)} }

// Expected returns the expected number of output tokens, at most limit; 0 is unknown. A limit
// of 0 is none.
func (e *Lengths) Expected(tenant, model string, limit int) int {
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

// Learn records that an answer had n tokens.
func (e *Lengths) Learn(tenant, model string, n int) {
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

func (e *Lengths) learnLocked(of outputOf, n int) {
	mean, ok := e.means[of]
	switch {
	case ok:
		e.means[of] = mean + (float64(n)-mean)*outputShare
	case len(e.means) < maxLengths:
		e.means[of] = float64(n)
	}
}

// maxResponses bounds the remembered responses. The oldest one is forgotten.
const maxResponses = 65536

// Responses remembers which worker has a stored response of /v1/responses, and whose it is. It is
// safe for concurrent use.
type Responses struct {
	mu    sync.Mutex
	known map[string]*list.Element // by the response's id
	order list.List                // of *response, the oldest first
}

type response struct {
	id, tenant string
	worker     kv.Worker
}

// NewResponses returns a memory without responses.
func NewResponses() *Responses { return &Responses{known: make(map[string]*list.Element)} }

// Remember records the worker of a tenant's response. The first tenant with an id keeps it:
// vLLM lets clients choose ids.
func (p *Responses) Remember(tenant, id string, w kv.Worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[id] != nil {
		return
	}
	if p.order.Len() == maxResponses {
		oldest := p.order.Front()
		delete(p.known, oldest.Value.(*response).id)
		p.order.Remove(oldest)
	}
	p.known[id] = p.order.PushBack(&response{id, tenant, w})
}

// Worker returns the worker of a tenant's response; nil when it is not known, or is another
// tenant's.
func (p *Responses) Worker(tenant, id string) *kv.Worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.known[id]; e != nil {
		if r := e.Value.(*response); r.tenant == tenant {
			w := r.worker
			return &w
		}
	}
	return nil
}
