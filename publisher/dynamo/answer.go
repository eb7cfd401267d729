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
	// sendInsteadEvery is the least time between two sendings of the state because of large dumps.
	sendInsteadEvery = 10 * time.Second
)

// answer returns the encoded answer to a router's recovery query: the lost events, a dump of all
// blocks, or an error. A query without a start, or from before the held events, gets a dump.
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

// answerFrom returns the answer to a recovery query for the events from id start on, from the
// journal of sent events. It returns false when the journal lacks some of them, so that only a
// dump helps. Events before a cleared event are left out: that event voids them.
func (s *Source) answerFrom(start uint64) (kvevent.QueryReply, bool) {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	first, next := s.journal.Held()
	r := kvevent.QueryReply{Kind: kvevent.QueryEvents, LastEventID: next - 1}
	switch {
	case first == next: // the journal is empty, but blocks from before event 1 may exist
		return r, false
	case start >= next:
		r.Kind = kvevent.QueryTooNew
		return r, true
	}
	events, ok := s.journal.Range(start, next-1)
	r.Events = publisher.FromLastCleared(events)
	return r, ok
}

// dumpItem returns the encoded answer to query q with a dump of all blocks. Queries that come while
// a dump is made share the dump. When the dump is too large for an answer, the answer is an
// error, and the source publishes its whole state instead.
func (s *Source) dumpItem(q *kvevent.DynamoQuery) []byte {
	made, _, _ := s.dumps.Do("", func() (any, error) {
		s.count.dumps.Add(1)
		return s.makeDump(), nil
	})
	d := made.(sharedDump)
	if d.item != nil { // the encoded answer; nil: too large
		return d.item
	}
	s.count.largeDumps.Add(1)
	s.sendStateInstead()
	r := kvevent.QueryReply{
		Kind: kvevent.QueryDumpFailed, LastEventID: d.last,
		Message: fmt.Sprintf("%d blocks do not fit an answer; everything is published again", d.blocks),
	}
	if !q.KnowsDumpFailed { // an older router, which cannot decode that kind
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

// makeDump dumps the source's blocks, and encodes them as the answer to a recovery query. The
// dump's item, the encoded answer, is nil when it is larger than an answer may be. An estimate
// by dumpedBlock and dumpedEvent, bytes on the wire, avoids encoding a dump that is far too large.
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

// sendStateInstead makes the source publish its whole state, for a router whose dump is too large for
// an answer. It does nothing within sendInsteadEvery of the last time.
func (s *Source) sendStateInstead() {
	s.sendMu.Lock()
	now := time.Now()
	recent := now.Sub(s.sentInstead) < sendInsteadEvery && !s.sentInstead.IsZero()
	if !recent {
		s.sentInstead = now
		s.mustSendState = true
	}
	s.sendMu.Unlock()
	s.inbox.Wake()
}
