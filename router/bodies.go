package router

import (
	"io"
	"sync/atomic"
)

const (
	// freeBody is how much of each body counts for nothing, so that what ends a
	// request gets through however large the others are.
	freeBody = 16 << 10
	// maxReading bounds what is read and decoded at a time; decoding takes a few times
	// as much memory. maxKept bounds the bodies of all requests at hand, of which
	// prompts are what is left.
	maxReading = 64 << 20
	maxKept    = 1 << 30
)

// bodyBudget bounds the bytes of request bodies. What has not arrived does not count, so
// that nobody takes room by announcing a large body. It may be used from any goroutine.
type bodyBudget struct {
	reading, kept byteLimit
	// refused counts the requests for which there was no room.
	refused atomic.Uint64
}

type byteLimit struct {
	most int64
	used atomic.Int64
}

func (l *byteLimit) take(n int64) bool {
	if l.used.Add(n) > l.most {
		l.used.Add(-n)
		return false
	}
	return true
}

// budgetedBody is a body that is charged for as it is read. It is for one goroutine.
type budgetedBody struct {
	from   io.Reader
	budget *bodyBudget
	read   int64
	// reading and kept are what was charged and not given back.
	reading, kept int64
}

// of is a body to be read; the caller calls decoded and then done.
func (b *bodyBudget) of(body io.Reader) *budgetedBody {
	return &budgetedBody{from: body, budget: b}
}

// Read implements io.Reader. The error is errBusy when there is no room for more.
func (b *budgetedBody) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	b.read += int64(n)
	if owed := b.read - freeBody - b.kept; owed > 0 {
		if !b.budget.reading.take(owed) {
			b.budget.refused.Add(1)
			return 0, errBusy
		}
		b.reading += owed
		if !b.budget.kept.take(owed) {
			b.budget.refused.Add(1)
			return 0, errBusy
		}
		b.kept += owed
	}
	return n, err
}

// decoded says that the body is not needed any more, but for what was decoded.
func (b *budgetedBody) decoded() {
	b.budget.reading.used.Add(-b.reading)
	b.reading = 0
}

// done says that nothing is left of it.
func (b *budgetedBody) done() {
	b.decoded()
	b.budget.kept.used.Add(-b.kept)
	b.kept = 0
}
