package dynamo

import (
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/metric"
)

// SourceStats are a source's counters since it was made.
type SourceStats struct {
	// Events, Messages and Bytes were given to the connection.
	Events   uint64 `json:"events"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	// Waiting events are in the inbox now. Dropped events left it without a number. Unsent
	// events were numbered and not sent. A repair makes up for dropped and unsent events.
	// AfterClose events came after Close.
	Waiting    uint64 `json:"waiting" metric:",gauge"`
	Dropped    uint64 `json:"dropped"`
	Unsent     uint64 `json:"unsent"`
	AfterClose uint64 `json:"after_close"`
	// PublishErrors are messages that the connection refused.
	PublishErrors uint64 `json:"publish_errors"`
	// Repairs sent the state again after a cleared event, Refreshes without one. Restated are
	// the events of both, RestatePauses the pauses between their messages.
	Repairs   uint64 `json:"repairs"`
	Refreshes uint64 `json:"refreshes"`
	Restated  uint64 `json:"restated"`

	RestatePauses uint64 `json:"restate_pauses"`
	// Probes are empty events.
	Probes uint64 `json:"probes"`
	// Queries are answered recovery queries. Dumps were made for them, and LargeDumps did
	// not fit an answer.
	Queries    uint64 `json:"queries"`
	Dumps      uint64 `json:"dumps"`
	LargeDumps uint64 `json:"large_dumps"`
	// Degraded: the stream lost events and could not repair that yet.
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
	in := s.inbox.Stats()
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

// PlaneStats are a plane's counters since it was opened, without those of its sources.
type PlaneStats struct {
	// Sources live now. Records are their files in the discovery directory. RecordErrors
	// are failures to touch or remove a record, RecordsRestored were deleted by others.
	Sources         uint64 `json:"sources" metric:",gauge"`
	Records         uint64 `json:"records" metric:",gauge"`
	RecordErrors    uint64 `json:"record_errors"`
	RecordsRestored uint64 `json:"records_restored"`
	// RivalSources are sources of other processes for our ranks now. Routers ignore these
	// ranks. It is 0 in a deployment that works.
	RivalSources uint64 `json:"rival_sources" metric:",gauge"`
	// Loads were sent. LoadErrors were refused by the connection and are tried again.
	// LoadsDropped are reports of more ranks than a plane follows.
	Loads        uint64 `json:"loads"`
	LoadErrors   uint64 `json:"load_errors"`
	LoadsDropped uint64 `json:"loads_dropped"`
	// Connections came to the recovery server. ConnectionsRefused were too many, altogether
	// or from one address. BadRequests could not be read, UnknownPaths named no source,
	// Overloads came during too many unfinished replies, DialBacksRefused named another
	// host's address, ReplyErrors were not sent to the end.
	Connections        uint64 `json:"connections"`
	ConnectionsRefused uint64 `json:"connections_refused"`
	BadRequests        uint64 `json:"bad_requests"`
	UnknownPaths       uint64 `json:"unknown_paths"`
	Overloads          uint64 `json:"overloads"`
	DialBacksRefused   uint64 `json:"dial_backs_refused"`
	ReplyErrors        uint64 `json:"reply_errors"`
}

// Stats returns the counters of the plane: its records, its loads, and its recovery server if there
// is one. Each Source counts its events itself.
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
