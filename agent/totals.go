package agent

import (
	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/publisher"
)

// EventTotals are the counters of all that events pass on their way out, summed
// over the node's ranks, streams and feeds, those that have ended included. It
// is where every drop, retry and repair can be seen.
type EventTotals struct {
	Ranks   consolidator.RankStats   `json:"ranks"`
	Streams consolidator.StreamStats `json:"streams"`
	Feeds   publisher.FeedStats      `json:"feeds"`
}

func (t *EventTotals) add(o *EventTotals) {
	t.Ranks.Add(o.Ranks)
	t.Streams.Add(o.Streams)
	t.Feeds.Add(o.Feeds)
}

// addStream adds what a stream and its feed count.
func (t *EventTotals) addStream(o *ownerStream) {
	t.Streams.Add(o.stream.Stats())
	if f := o.nats.Load(); f != nil {
		t.Feeds.Add(f.Stats())
	}
}

// named lists the counters that EventStats does not have already, by part.
func (t *EventTotals) named() map[string][]named {
	r, s, f := &t.Ranks, &t.Streams, &t.Feeds
	return map[string][]named{
		"rank": {
			{"frames", r.Frames}, {"bytes", r.Bytes}, {"batches", r.Batches}, {"blocks", r.Blocks},
			{"replays", r.Replays}, {"replay_failures", r.ReplayFailures}, {"replayed", r.Replayed},
			{"duplicates", r.Duplicates}, {"outdated", r.Outdated}, {"overflows", r.Overflows}, {"reannounced", r.Reannounced},
		},
		"stream": {
			{"blocks", s.Blocks}, {"unknown_removes", s.UnknownRemoves},
			{"ref_overflows", s.RefOverflows}, {"inline_flushes", s.InlineFlushes},
		},
		"feed": {
			{"messages", f.Messages}, {"bytes", f.Bytes}, {"skipped", f.Skipped}, {"after_close", f.AfterClose},
			{"publish_errors", f.PublishErrors}, {"announcements", f.Announcements},
			{"silent_announcements", f.SilentAnnouncements}, {"queries", f.Queries}, {"dumps", f.Dumps},
			{"bad_queries", f.BadQueries}, {"dropped_queries", f.DroppedQueries}, {"void_answers", f.VoidAnswers},
		},
	}
}
