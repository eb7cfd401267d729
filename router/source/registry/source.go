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

// AgentFollower follows a list of agents that changes; *HTTP is one.
type AgentFollower interface {
	// SetAgents changes the list. The error names the URL that is bad; nothing is
	// changed then.
	SetAgents(urls []string) error
	// Agents describes the streams, ordered by URL.
	Agents() []source.Agent
}

// RegistryOptions configure a Registry. The zero value is ready for use.
type Options struct {
	// File lists agents and workers; see WorkersFile. Empty: none. It is read again
	// when it has changed, which is looked for once in Poll; 0 means 2 s.
	File string
	Poll time.Duration
	// HTTP is told which agents the file lists, besides Agents; nil without one, and
	// then the file may list none.
	HTTP   AgentFollower
	Agents []string
	// FeedTimeout must be the router's; 0 means 15 s, as there.
	FeedTimeout time.Duration
	// AnnounceEvery is how often the workers are announced; 0 means 1 s.
	AnnounceEvery time.Duration
	// Log may be nil.
	Log *zap.Logger
}

// Validate reports the first option that is out of range. It does not read the file.
func (o *Options) Validate() error {
	if o.Poll < 0 || o.FeedTimeout < 0 || o.AnnounceEvery < 0 {
		return fmt.Errorf("registry poll %v, feed timeout %v, announce period %v: one is negative", o.Poll, o.FeedTimeout, o.AnnounceEvery)
	}
	return source.CheckAgents(o.Agents)
}

func (o Options) withDefaults() Options {
	if o.Poll == 0 {
		o.Poll = 2 * time.Second
	}
	if o.FeedTimeout == 0 {
		o.FeedTimeout = 15 * time.Second
	}
	if o.AnnounceEvery == 0 {
		o.AnnounceEvery = time.Second
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// Registry is a Transport that joins others and makes workers known which no agent
// speaks for: those of a file, and those that register over HTTP. It announces such
// a worker as an agent would, with no events to follow (kvevent.ModelCard.Silent),
// for as long as nobody else announces it; a real publisher always wins.
//
// Without any other transport it is all that a router has, and always connected.
// With several, each is disconnected by itself: the frames say which they are of,
// and whose publishers are not forgotten until it is back. Stats say that the whole
// is connected when all are.
type Source struct {
	opt    Options
	log    *zap.Logger
	inner  []source.Transport
	frames chan source.Frame

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	// telling is held while what is said in workers' names is made and sent.
	telling sync.Mutex

	mu   sync.Mutex
	away map[int]bool // sources that are disconnected
	// publishers says of which source a publisher is that the router has taken in,
	// spoken which owners such publishers speak for.
	publishers map[uint64]int
	spoken     map[kv.Owner]speaker
	entries    map[kv.Worker]*registered
	stats      Counters
	file       fileState
}

// maxSpoken bounds the owners that are remembered.
const maxSpoken = 1 << 16

// speaker is the publisher of an owner.
type speaker struct {
	publisher uint64
	source    int
	seen      time.Time
}

// Counters is a snapshot of a registry. The metric names follow "blockyard_router_".
type Counters struct {
	FromFile      int    `metric:"registered_from_file" help:"Worker ranks that the workers file lists."`
	FromHTTP      int    `metric:"registered_over_http" help:"Worker ranks that are registered over HTTP."`
	Spoken        int    `metric:"registered_spoken" help:"Registered worker ranks whose publisher is announced."`
	FileReads     uint64 `metric:"workers_file_reads" help:"Workers files read and applied."`
	FileErrors    uint64 `metric:"workers_file_errors" help:"Workers files with an error."`
	Registrations uint64 `metric:"registrations" help:"Registrations over HTTP, renewals included."`
	Refusals      uint64 `metric:"registrations_refused" help:"Registrations over HTTP that were refused."`
	Expired       uint64 `metric:"registrations_expired" help:"Registered worker ranks whose registration expired."`
}

var (
	_ source.Transport = (*Source)(nil)
	_ source.Resumer   = (*Source)(nil)
)

// NewRegistry joins the transports, which may be none; the caller closes them after
// the registry. A file that is set must be there and right. Close must be called.
func New(o Options, inner ...source.Transport) (*Source, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &Source{
		opt: o.withDefaults(), inner: inner, frames: make(chan source.Frame), away: make(map[int]bool),
		publishers: make(map[uint64]int), spoken: make(map[kv.Owner]speaker), entries: make(map[kv.Worker]*registered),
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
	for i, t := range inner {
		r.running.Go(func() { r.pump(i+1, t) })
	}
	r.running.Go(r.run)
	return r, nil
}

// Close ends the registry and waits for its goroutines. It may be called twice.
func (r *Source) Close() error {
	r.cancel()
	r.running.Wait()
	return nil
}

// Frames is the Transport's.
func (r *Source) Frames() <-chan source.Frame { return r.frames }

// Stats is the Transport's: the sum over the joined ones, connected if all are.
func (r *Source) Stats() source.Stats {
	s := source.Stats{Connected: true}
	for _, t := range r.inner {
		i := t.Stats()
		s.Connected = s.Connected && i.Connected
		s.Dropped += i.Dropped
		s.Reconnects += i.Reconnects
		s.StreamFailures += i.StreamFailures
		s.SnapshotBytes += i.SnapshotBytes
	}
	return s
}

// Resume is the Resumer's, for those of the joined transports that are one.
func (r *Source) Resume(position uint64) {
	for _, t := range r.inner {
		if resumer, ok := t.(source.Resumer); ok {
			resumer.Resume(position)
		}
	}
}

// Query is the Transport's.
func (r *Source) Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*source.Answer, error) {
	r.mu.Lock()
	i, ok := r.publishers[publisher]
	r.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("query publisher %016x: nobody has announced it", publisher)
	}
	return r.inner[i-1].Query(ctx, publisher, q)
}

// RegistryStats is a snapshot of the counters.
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
		if _, ok := r.spoken[kv.WorkerOwner(w)]; ok {
			s.Spoken++
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

// pump hands on the frames of the inner transport of an id.
func (r *Source) pump(id int, t source.Transport) {
	for {
		select {
		case <-r.ctx.Done():
			return
		case f := <-t.Frames():
			f.Source = id
			if f.Kind == source.FrameDisconnected || f.Kind == source.FrameConnected {
				r.connection(id, f.Kind == source.FrameConnected)
			}
			r.send(f)
		}
	}
}

func (r *Source) send(f source.Frame) bool {
	select {
	case r.frames <- f:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// run announces the workers and looks at the file.
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
		case <-poll.C:
			if r.opt.File == "" {
				continue
			}
			if err := r.readFile(); err != nil && !errors.Is(err, errSameFile) {
				r.log.Error("the workers file is not taken over; what it said before holds", zap.Error(err))
			}
		}
		r.announce(0, time.Now())
	}
}

// announce says of one worker, or with 0 of all, which ranks are there that nobody
// else speaks for, and which are gone because their registration has ended.
func (r *Source) announce(worker uint64, now time.Time) {
	r.telling.Lock()
	defer r.telling.Unlock()
	for _, a := range r.due(worker, now) {
		if !r.send(source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}) {
			return
		}
	}
}

// due is what is to be announced now, of one worker or with 0 of all. Owners whose publisher is silent for so long
// that the router has forgotten it are spoken for again. The caller holds telling.
func (r *Source) due(worker uint64, now time.Time) []kvevent.Announcement {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o, s := range r.spoken {
		if !r.away[s.source] && now.Sub(s.seen) > r.opt.FeedTimeout+r.opt.AnnounceEvery {
			delete(r.spoken, o)
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
			e.gone = true
			r.log.Warn("a registration was not renewed", zap.Stringer("worker", w))
		}
		_, spoken := r.spoken[kv.WorkerOwner(w)]
		switch {
		case e.gone:
			delete(r.entries, w)
			if e.publisher != 0 && !spoken {
				all = append(all, e.announcement(w, kvevent.HealthGone))
			}
		case !spoken:
			if e.publisher == 0 {
				e.publisher = kv.RandomID()
			}
			all = append(all, e.announcement(w, kvevent.HealthExact))
		}
	}
	return all
}

// SourceStats is the SourceCounter's: those of the joined transports, ordered by
// name, the sums of those with one name.
func (r *Source) Metrics() []source.Metrics {
	var all []source.Metrics
	for _, t := range r.inner {
		counting, ok := t.(source.Measured)
		if !ok {
			continue
		}
		for _, s := range counting.Metrics() {
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
