package miss

import (
	"sync"
	"time"
)

// Entry is a report with the request that it is of.
type Entry struct {
	Request, Model, Worker string
	At                     time.Time // when the router decided
	// Tokens is the length of the prompt. Predicted and Delivered are cached tokens.
	Tokens, Predicted, Delivered int
	Report
}

// Bounds of a Log.
const (
	// maxEntries bounds the entries that a Log keeps.
	maxEntries = 1024
	// maxSettling bounds the blocks of the requests that settle.
	maxSettling = 1 << 20
	// settleTime is how long a request waits for late events.
	settleTime = time.Second
)

// Log has the last entries of a router, and the sums of all. The zero value is ready for use.
type Log struct {
	mu       sync.Mutex
	entries  []Entry // a ring once it is full
	next     int
	tokens   [numCauses]uint64
	settling int // blocks
	hurried  uint64
}

// Settle calls explain a second from now, when late events have come. blocks is the number of blocks
// that explain keeps. When too many blocks settle already, Settle calls explain at once.
func (l *Log) Settle(blocks int, explain func()) {
	l.mu.Lock()
	full := l.settling+blocks > maxSettling
	if full {
		l.hurried++
	} else {
		l.settling += blocks
	}
	l.mu.Unlock()
	if full {
		explain()
		return
	}
	time.AfterFunc(settleTime, func() {
		explain()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.settling -= blocks
	})
}

// Add adds an entry. A full Log drops the oldest one. The caller must not change e afterwards.
func (l *Log) Add(e *Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range e.Parts {
		l.tokens[p.Cause] += uint64(p.Tokens)
	}
	if len(l.entries) < maxEntries {
		l.entries = append(l.entries, *e)
		return
	}
	l.entries[l.next] = *e
	l.next = (l.next + 1) % maxEntries
}

// Recent returns the last entries, newest first, at most the given number.
func (l *Log) Recent(most int) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.entries)
	out := make([]Entry, 0, min(most, n))
	for i := range cap(out) {
		out = append(out, l.entries[(l.next+n-1-i)%n])
	}
	return out
}

// Tokens returns the tokens that were not delivered since the start, by the name of the cause.
func (l *Log) Tokens() map[string]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]uint64, numCauses)
	for c := NewContent; c < numCauses; c++ {
		if c != StoredMeanwhile { // it explains only tokens that were delivered
			out[c.String()] = l.tokens[c]
		}
	}
	return out
}

// LogStats are the numbers of a Log. The metric names follow "blockyard_router_".
type LogStats struct {
	Hurried uint64 `metric:"miss_hurried" help:"Requests explained without a wait for late events, because too many waited."`
}

// Stats returns the numbers of the moment.
func (l *Log) Stats() LogStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LogStats{Hurried: l.hurried}
}
