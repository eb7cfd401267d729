package dynamo

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// maxItem is the largest item of a response: a frame may have 32 MiB.
	maxItem = 32<<20 - twoPartHeader
	// dumpedBlock and dumpedEvent are nearly what a block and an event take in a dump.
	dumpedBlock = 57
	dumpedEvent = 150
	// sayAllEvery is the least time between two repairs because of large dumps.
	sayAllEvery = 10 * time.Second
)

// answer is the response item for a query.
func (s *Source) answer(q *kvevent.DynamoQuery) []byte {
	s.count.queries.Add(1)
	refuse := func(format string, args ...any) []byte {
		return kvevent.AppendDynamoReply(nil, q, &kvevent.QueryReply{
			Kind: kvevent.QueryError, Message: fmt.Sprintf(format, args...),
		})
	}
	switch {
	case q.Worker != s.worker:
		return refuse("this source is worker %s, not %s", s.worker, q.Worker)
	case q.Kind != kvevent.DynamoRecovery:
		return refuse("query kind %.32q is not served", q.Kind)
	case q.HasStart && q.HasEnd && q.EndID < q.StartID:
		return kvevent.AppendDynamoReply(nil, q, &kvevent.QueryReply{Kind: kvevent.QueryInvalidRange})
	case q.HasStart:
		if r, ok := s.missed(q.StartID); ok {
			return kvevent.AppendDynamoReply(nil, q, &r)
		}
	}
	return s.dumpItem(q)
}

// missed is the answer to who has everything before an event; false when that
// takes a dump.
func (s *Source) missed(start uint64) (kvevent.QueryReply, bool) {
	s.turn.Lock()
	defer s.turn.Unlock()
	first, next := s.ring.Held()
	r := kvevent.QueryReply{Kind: kvevent.QueryEvents, LastEventID: next - 1}
	switch {
	case first == next:
		return r, false
	case start >= next:
		r.Kind = kvevent.QueryTooNew
		return r, true
	}
	events, ok := s.ring.Range(start, next-1)
	r.Events = publisher.FromLastCleared(events)
	return r, ok
}

// dumpItem is the response item of a dump. Who asks while one is made shares it.
func (s *Source) dumpItem(q *kvevent.DynamoQuery) []byte {
	made, _, _ := s.dumps.Do("", func() (any, error) {
		s.count.dumps.Add(1)
		return s.makeDump(), nil
	})
	d := made.(dumped)
	if d.item != nil {
		return d.item
	}
	s.count.largeDumps.Add(1)
	s.sayAllInstead()
	r := kvevent.QueryReply{
		Kind: kvevent.QueryDumpFailed, LastEventID: d.last,
		Message: fmt.Sprintf("%d blocks do not fit an answer; everything is published again", d.blocks),
	}
	if !q.KnowsDumpFailed {
		r.Kind = kvevent.QueryError
	}
	return kvevent.AppendDynamoReply(nil, q, &r)
}

// dumped is a dump for everybody who asked; item is nil when it is too large.
type dumped struct {
	item   []byte
	blocks int
	last   uint64
}

func (s *Source) makeDump() dumped {
	events, last := s.dump()
	d := dumped{last: last}
	for i := range events {
		d.blocks += len(events[i].Blocks)
	}
	if d.blocks*dumpedBlock+len(events)*dumpedEvent > s.plane.maxItem {
		return d
	}
	item := kvevent.AppendDynamoReply(nil, &kvevent.DynamoQuery{Worker: s.worker}, &kvevent.QueryReply{
		Kind: kvevent.QueryTreeDump, LastEventID: last, Events: events,
	})
	if len(item) <= s.plane.maxItem {
		d.item = item
	}
	return d
}

// sayAllInstead has everything published, unless that happened a moment ago.
func (s *Source) sayAllInstead() {
	s.turn.Lock()
	now := time.Now()
	recent := now.Sub(s.saidAll) < sayAllEvery && !s.saidAll.IsZero()
	if !recent {
		s.saidAll = now
		s.broken = true
	}
	s.turn.Unlock()
	s.in.Wake()
}
