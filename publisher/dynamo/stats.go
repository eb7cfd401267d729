package dynamo

import (
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/metric"
)

// SourceStats are a source's counters since it was made.
type SourceStats struct {
	// Events, Messages and Bytes are what was handed to the connection.
	Events   uint64 `json:"events"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	// Waiting events are in the inbox now; Dropped are those that left it before they
	// were numbered, Unsent those that were numbered and not sent, AfterClose those
	// that came too late. All of them but the last are made good by a repair.
	Waiting    uint64 `json:"waiting" metric:",gauge"`
	Dropped    uint64 `json:"dropped"`
	Unsent     uint64 `json:"unsent"`
	AfterClose uint64 `json:"after_close"`
	// PublishErrors are messages that the connection refused.
	PublishErrors uint64 `json:"publish_errors"`
	// Repairs are cleared events with everything behind them, Refreshes the times
	// that everything was said again without need, Restated the events of both, and
	// RestatePauses the pauses that spared their readers.
	Repairs   uint64 `json:"repairs"`
	Refreshes uint64 `json:"refreshes"`
	Restated  uint64 `json:"restated"`

	RestatePauses uint64 `json:"restate_pauses"`
	// Probes are empty events.
	Probes uint64 `json:"probes"`
	// Queries are recovery queries answered, Dumps those among them that took a dump,
	// LargeDumps the dumps that did not fit an answer.
	Queries    uint64 `json:"queries"`
	Dumps      uint64 `json:"dumps"`
	LargeDumps uint64 `json:"large_dumps"`
	// Degraded says that the stream lost something that it could not repair yet.
	Degraded bool `json:"degraded"`
}

// sourceCounters are SourceStats while they count.
type sourceCounters struct {
	events, messages, bytes, unsent, publishErrors atomic.Uint64
	repairs, refreshes, restated, restatePauses    atomic.Uint64
	probes                                         atomic.Uint64
	queries, dumps, largeDumps                     atomic.Uint64
	degraded                                       atomic.Bool
}

// Stats returns the counters.
func (s *Source) Stats() SourceStats {
	c := &s.count
	in := s.in.Stats()
	return SourceStats{
		Events: c.events.Load(), Messages: c.messages.Load(), Bytes: c.bytes.Load(),
		Waiting: uint64(in.Waiting), Dropped: in.Dropped, Unsent: c.unsent.Load(), AfterClose: in.AfterClose,
		PublishErrors: c.publishErrors.Load(),
		Repairs:       c.repairs.Load(), Refreshes: c.refreshes.Load(), Restated: c.restated.Load(), RestatePauses: c.restatePauses.Load(), Probes: c.probes.Load(),
		Queries: c.queries.Load(), Dumps: c.dumps.Load(), LargeDumps: c.largeDumps.Load(),
		Degraded: c.degraded.Load(),
	}
}

// Add adds the numbers of o to s.
func (s *SourceStats) Add(o SourceStats) { metric.Add(s, &o) }

// PlaneStats are a plane's counters since it was opened; those of its sources are
// their own.
type PlaneStats struct {
	// Sources are those that live now, Records the files held in the discovery
	// directory. RecordErrors are failures to touch or remove one, RecordsRestored
	// those that others had deleted.
	Sources         uint64 `json:"sources" metric:",gauge"`
	Records         uint64 `json:"records" metric:",gauge"`
	RecordErrors    uint64 `json:"record_errors"`
	RecordsRestored uint64 `json:"records_restored"`
	// RivalSources are records of others that speak for ranks of ours now: the routers
	// ignore these ranks. It is 0 in a deployment that works.
	RivalSources uint64 `json:"rival_sources" metric:",gauge"`
	// Loads are load messages sent, LoadErrors those that the connection refused (they
	// are tried again), LoadsDropped reports of more ranks than a plane follows.
	Loads        uint64 `json:"loads"`
	LoadErrors   uint64 `json:"load_errors"`
	LoadsDropped uint64 `json:"loads_dropped"`
	// Connections came to the recovery server, ConnectionsRefused were too
	// many, altogether or from one address.
	// BadRequests could not be read, UnknownPaths named nobody here, Overloads came
	// while too many were under way, DialBacksRefused named another host's address,
	// ReplyErrors could not be answered to the end.
	Connections        uint64 `json:"connections"`
	ConnectionsRefused uint64 `json:"connections_refused"`
	BadRequests        uint64 `json:"bad_requests"`
	UnknownPaths       uint64 `json:"unknown_paths"`
	Overloads          uint64 `json:"overloads"`
	DialBacksRefused   uint64 `json:"dial_backs_refused"`
	ReplyErrors        uint64 `json:"reply_errors"`
}

// Stats returns the counters.
func (p *Plane) Stats() PlaneStats {
	p.mu.Lock()
	s := PlaneStats{Sources: uint64(len(p.sources))}
	p.mu.Unlock()
	p.directory.mu.Lock()
	s.Records = uint64(len(p.directory.records))
	p.directory.mu.Unlock()
	s.RivalSources = p.rivalSources.Load()
	s.RecordErrors, s.RecordsRestored = p.directory.errors.Load(), p.directory.restored.Load()
	s.Loads, s.LoadErrors, s.LoadsDropped = p.loads.sentCount.Load(), p.loads.errors.Load(), p.loads.dropped.Load()
	if r := p.recovery; r != nil {
		s.Connections, s.ConnectionsRefused = r.connections.Load(), r.connectionsRefused.Load()
		s.BadRequests, s.UnknownPaths, s.Overloads = r.badRequests.Load(), r.unknownPaths.Load(), r.overloads.Load()
		s.DialBacksRefused, s.ReplyErrors = r.dialBacksRefused.Load(), r.replyErrors.Load()
	}
	return s
}
