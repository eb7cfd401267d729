package dynamo

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

// ErrClosed is the error of using a Plane after its Close.
var ErrClosed = errors.New("dynamo plane is closed")

// Plane publishes the worker ranks of one Dynamo endpoint. It is safe for concurrent use. Close
// it before its connection.
type Plane struct {
	opt           Options
	log           *zap.Logger
	conn          Conn
	instance      uint64 // id of this process
	eventsSubject string
	maxItem       int // largest recovery answer in bytes
	directory     *directory
	loads         *loads
	recovery      *recovery // nil: live-only
	address       string    // where routers reach recovery
	stop          chan struct{}
	running       sync.WaitGroup
	rivalSources  atomic.Uint64

	mu      sync.Mutex
	sources map[*Source]struct{}
	closed  bool
}

// Open starts a plane: this process's publisher of events and loads to Dynamo's routers. When the
// recovery server, which routers query for lost events, cannot be reached at its advertised
// address, the plane is live-only and logs a warning: it sends its state regularly. Open returns
// an error for a bad option, directory or address to listen on. The caller still owns conn, and
// closes it after the plane.
func Open(ctx context.Context, o Options, conn Conn) (*Plane, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Log = cmp.Or(o.Log, zap.NewNop())
	if err := os.MkdirAll(o.FileKV, 0o755); err != nil {
		return nil, fmt.Errorf("dynamo discovery directory: %w", err)
	}
	p := &Plane{
		opt: o, log: o.Log, conn: conn, instance: kv.RandomID(), maxItem: maxItem,
		eventsSubject: o.subject(kvevent.Topic),
		directory:     newDirectory(o.FileKV, o.Log),
		loads:         newLoads(conn, o.subject(kvevent.LoadTopic), o.Log),
		stop:          make(chan struct{}),
		sources:       make(map[*Source]struct{}),
	}
	if o.Recovery != "" {
		if err := p.startRecovery(ctx); err != nil {
			return nil, err
		}
	}
	p.running.Go(p.keepRecords)
	p.running.Go(func() { p.loads.run(p.stop) })
	return p, nil
}

// startRecovery starts the recovery server, which routers query for lost events. When the server
// does not answer at its advertised address, startRecovery closes it and returns nil: routers wait
// long for such a server. The sources are then live-only: they publish their state regularly.
func (p *Plane) startRecovery(ctx context.Context) error {
	r, err := listenRecovery(ctx, &p.opt)
	if err != nil {
		return err
	}
	p.address = p.opt.Advertise
	if p.address == "" {
		p.address = r.listener.Addr().String()
	}
	err = checkReachable(ctx, p.address, fmt.Sprintf("%x/check", kv.RandomID()))
	if ctx.Err() != nil {
		return errors.Join(fmt.Errorf("dynamo recovery address: %w", ctx.Err()), r.close())
	}
	if err != nil {
		p.log.Warn("the recovery server does not answer at its advertised address: sources are live-only",
			zap.String("address", p.address), zap.Error(err))
		return r.close()
	}
	r.uncountCheck()
	p.recovery = r
	return nil
}

// checkReachable checks that routers can reach this process's recovery server at address. It asks
// the server there for a path that no source has. It returns an error unless the answer is this
// process's refusal, which ends with the path.
func checkReachable(ctx context.Context, address, path string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(ackTimeout))
	// A frame for readFrame: the path, empty JSON headers, and no payload.
	ask := []byte{0, byte(len(path))}
	ask = append(append(ask, path...), 0, 2, '{', '}', 0, 0, 0, 0)
	if _, err := c.Write(ask); err != nil {
		return err
	}
	in := bufio.NewReader(c)
	n, err := readLength(in, 4, maxPath)
	if err != nil {
		return err
	}
	answer, err := in.Peek(n) // without the length
	if err != nil {
		return insideFrame(err)
	}
	if !strings.HasSuffix(string(answer), path) {
		return fmt.Errorf("somebody else answers: %s", hex.EncodeToString(answer[:min(n, 64)]))
	}
	return nil
}

// keepRecords touches the plane's records until the plane is closed, because readers delete stale
// ones. It also watches for sources of other processes.
func (p *Plane) keepRecords() {
	tick := time.NewTicker(touchEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
			p.directory.touch()
			p.watchRivals()
		}
	}
}

// NewSource returns a source that publishes the blocks of src for worker rank w, and writes
// its discovery record, by which routers find it. The caller gives src's events to Publish from
// now on. Blocks that src holds already are published or served too. A rank has one source.
func (p *Plane) NewSource(w kv.Worker, src publisher.Source) (*Source, error) {
	if err := checkOwner(src, w); err != nil {
		return nil, err
	}
	id := kv.RandomID()
	s := &Source{
		plane: p, stream: src, worker: w, id: id,
		record:      p.opt.recordPath(bucketSources, p.opt.sourceKey(id)),
		queryPath:   p.opt.queryPath(p.instance, id),
		recoverable: p.recovery != nil,
		log:         p.log.With(zap.Stringer("worker", w), zap.String("publisher", fmt.Sprintf("%x", id))),
		wake:        publisher.NewAlarm(),
		stop:        make(chan struct{}),
		done:        make(chan struct{}),
		journal:     publisher.NewJournal(sentEvents, math.MaxInt, (*kvevent.RouterEvent).NumBlocks),
	}
	s.inbox = publisher.NewInbox(inboxEvents, s.wake.Raise)
	s.journal.Skip() // ids begin at 1
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("dynamo source of worker %s: %w", w, ErrClosed)
	}
	for other := range p.sources {
		if other.worker == w {
			return nil, fmt.Errorf("dynamo source of worker %s: there is one", w)
		}
	}
	s.begin()
	var target *instanceRecord // where routers query for lost events; nil: nowhere
	if p.recovery != nil {
		// Routers may query the source as soon as its record exists.
		p.recovery.add(s.queryPath, s)
		target = p.opt.recoveryTarget(p.address, p.instance, id)
	}
	if err := p.directory.put(s.record, p.opt.sourceRecord(id, w, target), s.recordDeleted); err != nil {
		if p.recovery != nil {
			p.recovery.remove(s.queryPath)
		}
		return nil, fmt.Errorf("dynamo source of worker %s: %w", w, err)
	}
	p.sources[s] = struct{}{}
	go s.run()
	return s, nil
}

// PublishLoad publishes a changed load of a rank within loadDebounce. It never blocks.
func (p *Plane) PublishLoad(l kvevent.ActiveLoad) { p.loads.set(l) }

// forget takes an ended source off the plane: its record, its recovery queries and its load.
func (p *Plane) forget(s *Source) {
	p.directory.remove(s.record)
	if p.recovery != nil {
		p.recovery.remove(s.queryPath)
	}
	p.loads.forget(s.worker)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sources, s)
}

// Close ends all sources, removes all discovery records and waits for every goroutine. Further
// calls wait for the goroutines and return nil.
func (p *Plane) Close() error {
	sources, first := p.beginClose()
	if !first {
		p.running.Wait()
		return nil
	}
	for _, s := range sources {
		s.Close()
	}
	close(p.stop)
	p.running.Wait()
	p.directory.removeAll()
	if p.recovery != nil {
		return p.recovery.close()
	}
	return nil
}

// beginClose marks the plane as closed, so that no source is added. It returns the sources to
// close. first is false when an earlier Close has begun.
func (p *Plane) beginClose() (sources []*Source, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first = !p.closed
	p.closed = true
	for s := range p.sources {
		sources = append(sources, s)
	}
	return sources, first
}
