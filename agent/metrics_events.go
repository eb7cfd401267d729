package agent

import (
	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/httpfeed"
	"github.com/blockyard-ai/blockyard/publisher/nats"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// pathPart are the numbers of one part of the path of events: counters never fall,
// gauges are about the present.
type pathPart struct {
	name             string
	counters, gauges []named
}

// collectPath shows what events pass on their way out.
func (c *collector) collectPath(m metrics, s *Stats) {
	for _, p := range pathParts(s) {
		for _, n := range p.counters {
			m.counter(c.totals, n.value, p.name, n.name)
		}
		for _, n := range p.gauges {
			m.gauge(c.standing, float64(n.value), p.name, n.name)
		}
	}
	o := &s.Outputs
	for i := range o.Ranks {
		r := &o.Ranks[i]
		if r.ZMQ != nil {
			m.gauge(c.outputBlocks, float64(r.Blocks), r.Owner, "zmq")
		}
		if r.Dynamo != nil {
			m.gauge(c.outputBlocks, float64(r.Blocks), r.Owner, "dynamo")
		}
	}
	m.gauge(c.httpClients, float64(o.HTTP.Clients))
	for _, n := range httpCounters(&o.HTTP) {
		m.counter(c.httpTotal, n.value, n.name)
	}
}

// pathParts are all parts but those of which there is none here.
func pathParts(s *Stats) []pathPart {
	t, o := &s.Totals, &s.Outputs
	parts := []pathPart{
		rankPart(&t.Ranks), streamPart(&t.Streams), feedPart(&t.Feeds), sinkPart(&t.ZMQ), sourcePart(&t.Dynamo),
		{name: "outputs", counters: []named{{"zmq_failed", o.ZMQFailed}, {"dynamo_failed", o.DynamoFailed}, {"checkpoints_failed", o.CheckpointsFailed}, {"capped", o.Capped}, {"loads_lost", o.LoadsLost}}},
	}
	if o.Dynamo != nil {
		parts = append(parts, planePart(o.Dynamo))
	}
	if o.Tokens != nil {
		parts = append(parts, tokenPart(o.Tokens))
	}
	return parts
}

// rankPart leaves out what EventStats has.
func rankPart(r *consolidator.RankStats) pathPart {
	return pathPart{
		name: "rank",
		counters: []named{
			{"frames", r.Frames}, {"bytes", r.Bytes}, {"batches", r.Batches}, {"blocks", r.Blocks},
			{"unknown_keys", r.UnknownKeys}, {"replays", r.Replays}, {"replay_failures", r.ReplayFailures}, {"replayed", r.Replayed},
			{"duplicates", r.Duplicates}, {"outdated", r.Outdated}, {"overflows", r.Overflows}, {"reannounced", r.Reannounced},
			{"parked", r.Parked}, {"spliced", r.Spliced}, {"park_overflow", r.ParkOverflow},
			{"listed", r.Listed}, {"list_failures", r.ListFailures},
			{"checkpoints", r.Checkpoints}, {"checkpoint_failures", r.CheckpointFailures},
			{"checkpoints_rejected", r.CheckpointsRejected}, {"restored", r.Restored},
		},
		gauges: []named{
			{"known", r.Known}, {"parked_bytes", r.ParkedBytes}, {"unlisted", r.Unlisted}, {"repairing", oneIf(r.Repairing)},
		},
	}
}

// streamPart leaves out the events, which EventStats has as out.
func streamPart(s *consolidator.StreamStats) pathPart {
	return pathPart{name: "stream", counters: []named{
		{"blocks", s.Blocks}, {"unknown_removes", s.UnknownRemoves}, {"ref_overflows", s.RefOverflows},
		{"inline_flushes", s.InlineFlushes}, {"table_full", s.TableFull}, {"sinks_refused", s.SinksRefused},
		{"followers_cut", s.FollowersCut},
	}}
}

func feedPart(f *nats.FeedStats) pathPart {
	return pathPart{
		name: "feed",
		counters: []named{
			{"events", f.Events}, {"messages", f.Messages}, {"bytes", f.Bytes}, {"skipped", f.Skipped}, {"after_close", f.AfterClose},
			{"publish_errors", f.PublishErrors}, {"announcements", f.Announcements},
			{"silent_announcements", f.SilentAnnouncements}, {"queries", f.Queries}, {"dumps", f.Dumps},
			{"snapshots", f.Snapshots}, {"shared_dumps", f.SharedDumps}, {"dump_pauses", f.DumpPauses},
			{"bad_queries", f.BadQueries}, {"dropped_queries", f.DroppedQueries}, {"void_answers", f.VoidAnswers},
		},
		gauges: []named{{"unsent", f.Unsent}},
	}
}

// sinkPart is of the streams in the engines' format.
func sinkPart(z *zmqsink.Stats) pathPart {
	return pathPart{
		name: "zmq",
		counters: []named{
			{"batches", z.Batches}, {"events", z.Events}, {"blocks", z.Blocks}, {"bytes", z.Bytes}, {"raw", z.Raw},
			{"subscriptions", z.Subscriptions}, {"reannounced", z.Reannounced}, {"overflows", z.Overflows}, {"gaps", z.Gaps},
			{"dropped", z.Dropped}, {"dropped_raw", z.DroppedRaw}, {"held", z.Held}, {"missed", z.Missed},
			{"unknown_tokens", z.UnknownTokens}, {"retries", z.Retries}, {"recovered", z.Recovered}, {"unkept", z.Unkept}, {"unwanted", z.Unwanted},
			{"orphans", z.Orphans}, {"ignored_removes", z.IgnoredRemoves},
			{"foreign", z.Foreign}, {"after_close", z.AfterClose},
			{"replays", z.Replays}, {"replayed", z.Replayed}, {"bad_requests", z.BadRequests}, {"send_errors", z.SendErrors},
		},
		gauges: []named{{"subscribers", z.Subscribers}, {"said", z.Said}, {"left", z.Left}},
	}
}

// sourcePart is of the ranks that Dynamo's routers are told of.
func sourcePart(d *dynamo.SourceStats) pathPart {
	return pathPart{
		name: "dynamo",
		counters: []named{
			{"events", d.Events}, {"messages", d.Messages}, {"bytes", d.Bytes},
			{"dropped", d.Dropped}, {"unsent", d.Unsent}, {"after_close", d.AfterClose}, {"publish_errors", d.PublishErrors},
			{"repairs", d.Repairs}, {"refreshes", d.Refreshes}, {"restated", d.Restated}, {"restate_pauses", d.RestatePauses}, {"probes", d.Probes},
			{"queries", d.Queries}, {"dumps", d.Dumps}, {"large_dumps", d.LargeDumps},
		},
		gauges: []named{{"waiting", d.Waiting}, {"degraded", oneIf(d.Degraded)}},
	}
}

// planePart is of what those ranks have in common.
func planePart(p *dynamo.PlaneStats) pathPart {
	return pathPart{
		name: "dynamo_plane",
		counters: []named{
			{"record_errors", p.RecordErrors}, {"records_restored", p.RecordsRestored},
			{"loads", p.Loads}, {"load_errors", p.LoadErrors}, {"loads_dropped", p.LoadsDropped},
			{"connections", p.Connections}, {"connections_refused", p.ConnectionsRefused},
			{"bad_requests", p.BadRequests}, {"unknown_paths", p.UnknownPaths}, {"overloads", p.Overloads},
			{"dial_backs_refused", p.DialBacksRefused}, {"reply_errors", p.ReplyErrors},
		},
		gauges: []named{{"sources", p.Sources}, {"records", p.Records}, {"rival_sources", p.RivalSources}},
	}
}

func tokenPart(t *tokens.Stats) pathPart {
	return pathPart{
		name:     "tokens",
		counters: []named{{"stored", t.Stored}, {"evicted", t.Evicted}, {"refused", t.Refused}, {"misses", t.Misses}},
		gauges:   []named{{"blocks", t.Blocks}, {"retained", t.Retained}, {"bytes", t.Bytes}},
	}
}

func httpCounters(s *httpfeed.Stats) []named {
	t := &s.Totals
	return []named{
		{"frames", s.Frames}, {"bytes", s.Bytes}, {"dropped", s.Dropped}, {"clients_refused", s.Refused}, {"clients_cut", s.Cut},
		{"events", t.Events}, {"skipped", t.Skipped}, {"after_close", t.AfterClose}, {"announcements", t.Announcements},
		{"queries", t.Queries}, {"dumps", t.Dumps}, {"snapshots", t.Snapshots}, {"bad_queries", t.BadQueries},
		{"dropped_queries", t.DroppedQueries}, {"void_answers", t.VoidAnswers},
	}
}
