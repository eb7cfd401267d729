package replica

import (
	"errors"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/load"
)

// errUnknownModel answers a question about a model that this router does not have.
var errUnknownModel = errors.New("replica query: the model is not open")

// page returns this router's answer to a question for its bookings.
func (s *State) page(q *query) ([]byte, error) {
	s.mu.Lock()
	o := s.models[q.model]
	var to Scheduler
	if o != nil {
		to = o.to
	}
	s.mu.Unlock()
	if to == nil {
		return nil, errUnknownModel
	}
	p := page{opening: o.opening, number: o.journal.lastNumber()} // before the bookings, so that they have all changes up to it
	bytes := 0
	to.WithAccount(func(a *load.Account) (released kv.Worker, ok bool) {
		a.Bookings(q.from, func(b *load.Booking) bool {
			if bytes >= pageBytes {
				p.next = b.Number
				return false
			}
			c := change{booked, *b}
			c.Sequence = slices.Clone(b.Sequence[:min(len(b.Sequence), maxSequence)])
			p.bookings = append(p.bookings, c)
			bytes += bookingBytes + len(b.ID) + 8*len(c.Sequence)
			return true
		})
		return released, false
	})
	return appendPage(nil, &p), nil
}

// markFound and markUnknown answer a mark.
const markFound, markUnknown = "found", "unknown"

// Answer answers a question of another router, for bookings or about a mark. mark applies a mark and
// reports whether this router has booked the request; nil finds no request. The error says what is wrong
// with the question.
func (s *State) Answer(data []byte, mark func(m *Mark) bool) ([]byte, error) {
	q, err := s.question(data)
	switch {
	case err != nil:
		return nil, err
	case q.mark == nil:
		return s.page(&q)
	case mark != nil && mark(q.mark):
		return []byte(markFound), nil
	}
	return []byte(markUnknown), nil
}

// question reads a question of another router, and counts those that cannot be read.
func (s *State) question(data []byte) (q query, err error) {
	if len(data) > maxReceivedBytes {
		err = errOversized
	} else {
		q, err = decodeQuery(data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, errOversized):
		s.stats.Oversized++
	case err != nil:
		s.stats.Malformed++
	}
	return q, err
}
