package index

import (
	"fmt"
	"runtime/debug"

	"github.com/blockyard-ai/blockyard/lab/index/oplog"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Names of figures of the part memory.
const (
	figBytes     = "bytes_per_membership"
	figBytesUsed = "bytes_per_membership_before_collection"
	figPairs     = "memberships"
)

// settledMemory is the private memory of the process after garbage was collected
// and given back.
func settledMemory() (uint64, error) {
	debug.FreeOSMemory()
	return privateMemory()
}

// applyOneByOne applies the log's events, each made when it is its turn.
func (r *replay) applyOneByOne(x *index.Index) error {
	id := uint64(0)
	for _, rec := range r.log.Records() {
		if rec.Op == oplog.Query {
			continue
		}
		id++
		e := eventOf(rec, id)
		if err := x.Apply(&e); err != nil {
			return err
		}
	}
	drain(x)
	return nil
}

// measureMemory compares resident memory before the index and after all events.
// One event after the other is made in the same place.
func (r *replay) measureMemory() (Figures, error) {
	h := r.log.Header()
	if h.Answers.Memberships == 0 {
		return nil, fmt.Errorf("op log: word 8 (memberships) is 0: there is nothing to divide by")
	}
	r.events, r.queries, r.order = nil, nil, nil
	before, err := settledMemory()
	if err != nil {
		return nil, err
	}
	x, err := newIndex(h.Engines)
	if err != nil {
		return nil, err
	}
	if err := r.applyOneByOne(x); err != nil {
		return nil, err
	}
	used, err := privateMemory()
	if err != nil {
		return nil, err
	}
	after, err := settledMemory()
	if err != nil {
		return nil, err
	}
	per := func(bytes uint64) float64 { return (float64(bytes) - float64(before)) / float64(h.Answers.Memberships) }
	f := Figures{figBytes: per(after), figBytesUsed: per(used), figPairs: float64(h.Answers.Memberships)}
	return f, r.checkHeld(x)
}
