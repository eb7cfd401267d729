package dynamo

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// maxItem is the largest item of a response in bytes: a frame may have 32 MiB.
	maxItem = 32<<20 - twoPartHeader
	// dumpedBlock and dumpedEvent estimate the bytes of a block and of an event in a dump.
	dumpedBlock = 57
	dumpedEvent = 150
	// restateEvery is the least time between two restatements because of large dumps.
	restateEvery = 10 * time.Second
)

// answer returns the response item for a query.
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
		if r, ok := s.answerFrom(q.StartID); ok {
			return kvevent.AppendDynamoReply(nil, q, &r)
		}
	}
	return s.dumpItem(q)
}

// answerFrom returns the sent events from start on. It returns false when only a dump has them.
func (s *Source) answerFrom(start uint64) (kvevent.QueryReply, bool) {
	s.turn.Lock()
	defer s.turn.Unlock()
	first, next := s.sent.Held()
	r := kvevent.QueryReply{Kind: kvevent.QueryEvents, LastEventID: next - 1}
	switch {
	case first == next:
		return r, false
	case start >= next:
		r.Kind = kvevent.QueryTooNew
		return r, true
	}
	events, ok := s.sent.Range(start, next-1)
	r.Events = publisher.FromLastCleared(events)
	return r, ok
}

// dumpItem returns the response item of a dump. Queries that come while a dump is made
// share it.
func (s *Source) dumpItem(q *kvevent.DynamoQuery) []byte {
	made, _, _ := s.dumps.Do("", func() (any, error) {
		s.count.dumps.Add(1)
		return s.makeDump(), nil
	})
	d := made.(sharedDump)
	if d.item != nil {
		return d.item
	}
	s.count.largeDumps.Add(1)
	s.restateInstead()
	r := kvevent.QueryReply{
		Kind: kvevent.QueryDumpFailed, LastEventID: d.last,
		Message: fmt.Sprintf("%d blocks do not fit an answer; everything is published again", d.blocks),
	}
	if !q.KnowsDumpFailed {
		r.Kind = kvevent.QueryError
	}
	return kvevent.AppendDynamoReply(nil, q, &r)
}

// sharedDump is a dump for all queries that share it; item is nil when it is too large.
type sharedDump struct {
	item   []byte
	blocks int
	last   uint64
}

func (s *Source) makeDump() sharedDump {
	events, last := s.dump()
	d := sharedDump{last: last}
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

// restateInstead makes the source restate its state, unless it did within restateEvery.
func (s *Source) restateInstead() {
	s.turn.Lock()
	now := time.Now()
	recent := now.Sub(s.restatedAt) < restateEvery && !s.restatedAt.IsZero()
	if !recent {
		s.restatedAt = now
		s.mustRestate = true
	}
	s.turn.Unlock()
	s.in.Wake()
}
