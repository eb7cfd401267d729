package console

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

const (
	// period is the time between two points of a History.
	period = 5 * time.Second
	// maxPoints bounds the points: 15 minutes.
	maxPoints = 180
)

// Value is a named number.
type Value struct {
	Name   string
	Number float64
}

// History keeps the last values of numbers of a process. Make one with NewHistory.
type History struct {
	read func() []Value

	mu     sync.Mutex
	points []point // a ring once it is full
	next   int
}

// point has the values of one moment.
type point struct {
	at     time.Time
	values []Value
}

// NewHistory returns a history without points. read returns the values of now: in each call the same
// names in the same order.
func NewHistory(read func() []Value) *History { return &History{read: read} }

// Run adds a point now and every five seconds until ctx ends.
func (h *History) Run(ctx context.Context) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		h.add(time.Now())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// add adds a point. A full history drops its oldest one.
func (h *History) add(now time.Time) {
	values := h.read()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.points) < maxPoints {
		h.points = append(h.points, point{now, values})
		return
	}
	h.points[h.next] = point{now, values}
	h.next = (h.next + 1) % maxPoints
}

// Past is the answer to GET /v1/history: a value of each series at each time, oldest first.
type Past struct {
	PeriodSeconds float64 `json:"period_seconds"`
	// At are the times in milliseconds since 1970.
	At     []int64              `json:"at"`
	Series map[string][]float64 `json:"series"`
}

// Past returns all points.
func (h *History) Past() *Past {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.points)
	p := &Past{PeriodSeconds: period.Seconds(), At: make([]int64, 0, n), Series: make(map[string][]float64)}
	for i := range n {
		one := &h.points[(h.next+i)%n]
		p.At = append(p.At, one.at.UnixMilli())
		for _, v := range one.values {
			p.Series[v.Name] = append(p.Series[v.Name], v.Number)
		}
	}
	return p
}

// ServeHTTP answers GET /v1/history.
func (h *History) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(h.Past()) // the client may have gone
}
