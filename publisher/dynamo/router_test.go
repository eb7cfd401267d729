package dynamo

import (
	"fmt"
	"maps"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// routerModel follows one publisher as a Dynamo 1.6 router does: its cursor, the
// events that wait for a recovery, and what it credits the rank with.
type routerModel struct {
	source      *Source
	recoverable bool
	started     bool
	recovering  bool
	asked       kvevent.DynamoQuery // the query that waits for its answer
	cursor      uint64
	waiting     []kvevent.RouterEvent
	state       map[pair]kv.LocalHash
	// resets are how often the rank was emptied because of a hole.
	resets int
}

// newRouterModel is a router that has just found the source's record.
func newRouterModel(s *Source) *routerModel {
	r := &routerModel{source: s, recoverable: s.recoverable, state: make(map[pair]kv.LocalHash)}
	if r.recoverable {
		r.recover(kvevent.QueryRequest{})
	}
	return r
}

func (r *routerModel) recover(q kvevent.QueryRequest) {
	r.recovering = true
	r.asked = kvevent.DynamoQuery{QueryRequest: q, Worker: r.source.worker, KnowsDumpFailed: true, Kind: kvevent.DynamoRecovery}
}

// events takes the events of a message.
func (r *routerModel) events(events []kvevent.RouterEvent) error {
	for _, e := range events {
		if e.Owner != kv.WorkerOwner(r.source.worker) {
			return fmt.Errorf("event %d is of %s", e.ID, e.Owner)
		}
		r.event(e)
	}
	return nil
}

func (r *routerModel) event(e kvevent.RouterEvent) {
	switch {
	case e.Kind == kvevent.Cleared && e.ID > r.cursor:
		r.recovering, r.started = false, true
		r.waiting = nil
		r.apply(e)
	case e.Kind == kvevent.Cleared:
	case r.recovering:
		if len(r.waiting) == 1024 {
			r.waiting = r.waiting[1:]
		}
		r.waiting = append(r.waiting, e)
	case !r.started:
		r.started = true
		r.apply(e)
	case e.ID <= r.cursor:
	case e.ID == r.cursor+1:
		r.apply(e)
	case r.recoverable:
		r.waiting = append(r.waiting, e)
		r.recover(kvevent.QueryRequest{StartID: r.cursor + 1, HasStart: true})
	default:
		r.resets++
		clear(r.state)
		r.apply(e)
	}
}

// apply changes the state and moves the cursor.
func (r *routerModel) apply(e kvevent.RouterEvent) {
	switch e.Kind {
	case kvevent.Stored:
		for _, b := range e.Blocks {
			r.state[pair{e.Tier, b.Hash}] = b.Local
		}
	case kvevent.Removed:
		for _, h := range e.Removed {
			delete(r.state, pair{e.Tier, h})
		}
	case kvevent.Cleared:
		clear(r.state)
	}
	r.cursor = e.ID
}

// ask sends the query that waits, if any, and takes its answer. It reports whether
// it asked.
func (r *routerModel) ask() (bool, error) {
	if !r.recovering {
		return false, nil
	}
	item, err := kvevent.DecodeDynamoItem(r.source.answer(&r.asked))
	if err != nil {
		return true, err
	}
	return true, r.answered(item.Reply)
}

// answered takes the answer to the query that waits.
func (r *routerModel) answered(reply *kvevent.QueryReply) error {
	switch reply.Kind {
	case kvevent.QueryTreeDump:
		clear(r.state)
		for _, e := range reply.Events {
			r.apply(e)
		}
	case kvevent.QueryEvents:
		for _, e := range reply.Events {
			if e.ID > r.cursor {
				r.apply(e)
			}
		}
	case kvevent.QueryDumpFailed:
		return nil
	default:
		return fmt.Errorf("answer %s %q to %+v", reply.Kind, reply.Message, r.asked)
	}
	r.cursor = reply.LastEventID
	r.recovering, r.started = false, true
	waiting := r.waiting
	r.waiting = nil
	for _, e := range waiting {
		r.event(e)
	}
	return nil
}

// agrees says how the router's picture differs from the stream's.
func (r *routerModel) agrees(f *fakeStream) error {
	want := f.state()
	if !maps.Equal(r.state, want) {
		return fmt.Errorf("the router credits %d pairs at event %d (recovering %t, %d wait), the stream holds %d",
			len(r.state), r.cursor, r.recovering, len(r.waiting), len(want))
	}
	return nil
}
