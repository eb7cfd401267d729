package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// AgentFollower follows a changing list of agents; *http.Source implements it.
type AgentFollower interface {
	// SetAgents replaces the list. After an error, which names the bad URL, nothing has
	// changed.
	SetAgents(urls []string) error
	// Agents describes the streams, ordered by URL.
	Agents() []source.Agent
}

// Options configure a Source. The zero value is ready for use.
type Options struct {
	// File lists agents and workers; see WorkersFile. Empty means none. The Source checks
	// every Poll whether the file has changed; 0 means 2 s.
	File string
	Poll time.Duration
	// HTTP follows Agents and the agents of the file. Without HTTP it is nil, and the
	// file must list no agents.
	HTTP   AgentFollower
	Agents []string
	// FeedTimeout must equal the router's feed timeout; 0 means 15 s.
	FeedTimeout time.Duration
	// AnnounceEvery is the period of announcements; 0 means 1 s.
	AnnounceEvery time.Duration
	// Log may be nil.
	Log *zap.Logger
}

// Validate reports the first option that is out of range. It does not read the file.
func (o *Options) Validate() error {
	if o.Poll < 0 || o.FeedTimeout < 0 || o.AnnounceEvery < 0 {
		return fmt.Errorf("registry poll %v, feed timeout %v, announce period %v: must not be negative", o.Poll, o.FeedTimeout, o.AnnounceEvery)
	}
	return source.CheckAgents(o.Agents)
}

// withDefaults returns the options with defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.Poll = cmp.Or(o.Poll, 2*time.Second)
	o.FeedTimeout = cmp.Or(o.FeedTimeout, 15*time.Second)
	o.AnnounceEvery = cmp.Or(o.AnnounceEvery, time.Second)
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return o
}

// Source is a Transport that joins others and announces registered workers: the workers
// of a file, and workers that register over HTTP. A registered worker has no events
// (kvevent.ModelCard.Silent). The Source announces a registered worker only while no
// publisher announces it.
//
// Without other transports the Source is always connected. Several transports are
// connected each by itself: frames name their source, and the router forgets no publisher
// of a disconnected source. Stats report connected when all transports are.
type Source struct {
	opt        Options
	log        *zap.Logger
	transports []source.Transport
	frames     chan source.Frame

	ctx        context.Context
	cancel     context.CancelFunc
	goroutines sync.WaitGroup

	// soon is filled by AnnounceSoon.
	soon chan struct{}

	// announceMu is locked while announcements are built and sent, so that they keep
	// their order. announceMu is locked before mu.
	announceMu sync.Mutex

	// mu guards the fields below except file.
	mu           sync.Mutex
	disconnected map[int]bool // by source number
	// publishers has the source of each publisher that the router accepted. owners has the
	// publisher of each owner.
	publishers map[uint64]int
	owners     map[kv.Owner]ownerPublisher
	entries    map[kv.Worker]*registered
	stats      Counters
	lastFile   fileState
}

// maxOwners bounds Source.owners.
const maxOwners = 1 << 16

// ownerPublisher is the publisher of an owner.
type ownerPublisher struct {
	publisher uint64
	source    int
	seenAt    time.Time
}

// Counters is a snapshot of a registry. The metric names follow "blockyard_router_".
type Counters struct {
	FromFile      int    `metric:"registered_from_file" help:"Worker ranks in the workers file."`
	FromHTTP      int    `metric:"registered_over_http" help:"Worker ranks registered over HTTP."`
	Announced     int    `metric:"registered_spoken" help:"Registered worker ranks whose publisher is announced."`
	FileReads     uint64 `metric:"workers_file_reads" help:"Workers files read and applied."`
	FileErrors    uint64 `metric:"workers_file_errors" help:"Workers files with an error."`
	Registrations uint64 `metric:"registrations" help:"Registrations over HTTP, renewals included."`
	Refusals      uint64 `metric:"registrations_refused" help:"Refused registrations over HTTP."`
	Expired       uint64 `metric:"registrations_expired" help:"Registered worker ranks whose registration expired."`
}

var (
	_ source.Transport = (*Source)(nil)
	_ source.Resumer   = (*Source)(nil)
)

// New returns a Source that joins the frames of any number of transports with announcements of
// registered workers. The caller closes the transports after the Source. Options.File, if set,
// must exist and be valid; its workers are registered. Close must be called.
func New(o Options, transports ...source.Transport) (*Source, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &Source{
		opt: o.withDefaults(), transports: transports, frames: make(chan source.Frame), soon: make(chan struct{}, 1), disconnected: make(map[int]bool),
		publishers: make(map[uint64]int), owners: make(map[kv.Owner]ownerPublisher), entries: make(map[kv.Worker]*registered),
	}
	r.log = r.opt.Log
	err := r.setAgents(nil)
	if err == nil && r.opt.File != "" {
		err = r.readFile()
	}
	if err != nil {
		return nil, err
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	for i, t := range transports {
		r.goroutines.Go(func() { r.pump(i+1, t) })
	}
	r.goroutines.Go(r.run)
	return r, nil
}

// Close ends the Source and waits for its goroutines. It may be called twice.
func (r *Source) Close() error {
	r.cancel()
	r.goroutines.Wait()
	return nil
}

// Frames implements source.Transport.
func (r *Source) Frames() <-chan source.Frame { return r.frames }

// Stats implements source.Transport: the sum over the transports, connected if all are.
func (r *Source) Stats() source.Stats {
	s := source.Stats{Connected: true}
	for _, t := range r.transports {
		i := t.Stats()
		s.Connected = s.Connected && i.Connected
		s.Dropped += i.Dropped
		s.Reconnects += i.Reconnects
		s.StreamFailures += i.StreamFailures
		s.SnapshotReplacements += i.SnapshotReplacements
		s.SnapshotBucketLimited += i.SnapshotBucketLimited
		s.SnapshotBytes += i.SnapshotBytes
	}
	return s
}

// Resume implements source.Resumer. It passes position to the transport that is a Resumer.
// A router has at most one, NATS with JetStream, so position is a position in that stream.
func (r *Source) Resume(position uint64) {
	for _, t := range r.transports {
		if resumer, ok := t.(source.Resumer); ok {
			resumer.Resume(position)
		}
	}
}

// Query implements source.Transport. It asks the transport that announced the publisher.
func (r *Source) Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*source.Answer, error) {
	r.mu.Lock()
	number, ok := r.publishers[publisher]
	r.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("query publisher %016x: no source has announced the publisher", publisher)
	}
	return r.transports[number-1].Query(ctx, publisher, q)
}

// Hint implements source.Hinter by the transport of the publisher.
func (r *Source) Hint(ctx context.Context, publisher uint64, data []byte) error {
	r.mu.Lock()
	number, ok := r.publishers[publisher]
	r.mu.Unlock()
	if !ok {
		return source.ErrNoHints
	}
	h, ok := r.transports[number-1].(source.Hinter)
	if !ok {
		return source.ErrNoHints
	}
	return h.Hint(ctx, publisher, data)
}

// AskAnnouncements implements source.Asker by the transport with number from.
func (r *Source) AskAnnouncements(from int, agent uint64) error {
	if from >= 1 && from <= len(r.transports) {
		if t, ok := r.transports[from-1].(source.Asker); ok {
			return t.AskAnnouncements(0, agent)
		}
	}
	return source.ErrNoAsking
}

// Counters returns the gauges and counters.
func (r *Source) Counters() Counters {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	for w, e := range r.entries {
		if e.source == source.FromFile {
			s.FromFile++
		} else {
			s.FromHTTP++
		}
		if _, ok := r.owners[kv.WorkerOwner(w)]; ok {
			s.Announced++
		}
	}
	return s
}

// Agents describes the agents' streams; nil without HTTP.
func (r *Source) Agents() []source.Agent {
	if r.opt.HTTP == nil {
		return nil
	}
	return r.opt.HTTP.Agents()
}

// pump passes the frames of one transport to the router until Close, in a goroutine of its own.
// number is the transport's number from 1, which becomes the frames' Source. Source 0 is the
// registry itself.
func (r *Source) pump(number int, t source.Transport) {
	for {
		select {
		case <-r.ctx.Done():
			return
		case f := <-t.Frames():
			f.Source = number
			if f.Kind == source.FrameDisconnected || f.Kind == source.FrameConnected {
				r.connectionChanged(number, f.Kind == source.FrameConnected)
			}
			r.send(f)
		}
	}
}

// send passes one frame to the router. It returns false after Close.
func (r *Source) send(f source.Frame) bool {
	select {
	case r.frames <- f:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// run is the registry's own goroutine: until Close it announces the registered workers every
// AnnounceEvery, or sooner after AnnounceSoon, and reads the file when it has changed.
func (r *Source) run() {
	announce := time.NewTicker(r.opt.AnnounceEvery)
	defer announce.Stop()
	poll := time.NewTicker(r.opt.Poll)
	defer poll.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-announce.C:
		case <-r.soon:
		case <-poll.C:
			if r.opt.File == "" {
				continue
			}
			if err := r.readFile(); err != nil && !errors.Is(err, errFileUnchanged) {
				r.log.Error("workers file is not applied; its previous content stays in force", zap.Error(err))
			}
		}
		r.sendAnnouncements(0, time.Now())
	}
}

// sendAnnouncements announces the registered ranks of one worker, or of all for 0. Ranks whose
// registration ended say goodbye.
func (r *Source) sendAnnouncements(worker uint64, now time.Time) {
	r.announceMu.Lock()
	defer r.announceMu.Unlock()
	for _, a := range r.dueAnnouncements(worker, now) {
		if !r.send(source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}) {
			return
		}
	}
}

// dueAnnouncements returns the announcements of registered ranks to send to the router now, for
// one worker or for all workers with 0. r.owners has the ranks that a live publisher announces:
// the registry does not announce those. It first forgets the publishers that the router has timed
// out, and ends expired registrations. The caller holds announceMu.
func (r *Source) dueAnnouncements(worker uint64, now time.Time) []kvevent.Announcement {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o, s := range r.owners {
		if !r.disconnected[s.source] && now.Sub(s.seenAt) > r.opt.FeedTimeout+r.opt.AnnounceEvery {
			delete(r.owners, o)
			delete(r.publishers, s.publisher)
		}
	}
	var all []kvevent.Announcement
	for w, e := range r.entries {
		if worker != 0 && uint64(w.ID) != worker {
			continue
		}
		if !e.expires.IsZero() && now.After(e.expires) {
			r.stats.Expired++
			e.ended = true
			r.log.Warn("registration was not renewed", zap.Stringer("worker", w))
		}
		_, announced := r.owners[kv.WorkerOwner(w)]
		switch {
		case e.ended:
			delete(r.entries, w)
			if e.publisher != 0 && !announced { // else the router does not follow the registration
				all = append(all, e.announcement(w, kvevent.HealthGone))
			}
		case !announced:
			if e.publisher == 0 {
				e.publisher = kv.RandomID()
			}
			all = append(all, e.announcement(w, kvevent.HealthExact))
		}
	}
	return all
}

// Metrics returns the metrics of the transports that have some, ordered by name. The counters of
// transports with the same name are added up.
func (r *Source) Metrics() []source.Metrics {
	var all []source.Metrics
	for _, t := range r.transports {
		measured, ok := t.(source.Measured)
		if !ok {
			continue
		}
		for _, s := range measured.Metrics() {
			i, found := slices.BinarySearchFunc(all, s.Name, func(have source.Metrics, name string) int { return cmp.Compare(have.Name, name) })
			if !found {
				all = slices.Insert(all, i, s)
				continue
			}
			for name, v := range s.Counters {
				all[i].Counters[name] += v
			}
			for name, v := range s.Gauges {
				all[i].Gauges[name] += v
			}
		}
	}
	return all
}
