package dynamo

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// loadDebounce is the time for which a changed load waits for further changes.
	loadDebounce = time.Millisecond
	// maxLoads bounds the ranks whose load a plane follows.
	maxLoads = 4096
)

// loads publishes the load of each rank when it changed. Each rank has its own last value,
// so two ranks that change together are both published.
type loads struct {
	conn      Conn
	subject   string
	publisher uint64
	log       *zap.Logger
	wake      publisher.Alarm

	sentCount, errors, dropped atomic.Uint64

	mu    sync.Mutex
	ranks map[kv.Worker]*rankLoad

	// The fields below belong to the goroutine of run.
	sequence     uint64
	buf          []byte
	disconnected bool
}

// rankLoad is the load of one rank: the current one and the last one sent.
type rankLoad struct {
	current, sent kvevent.ActiveLoad
	isSent        bool // sent is set
}

func newLoads(conn Conn, subject string, log *zap.Logger) *loads {
	return &loads{
		conn: conn, subject: subject, publisher: kv.RandomID(), log: log,
		wake: publisher.NewAlarm(), ranks: make(map[kv.Worker]*rankLoad),
	}
}

// set records a, the present load of a.Worker. If it differs from the load sent last, the goroutine
// of run is woken to send it. The load of a new rank beyond maxLoads is dropped and counted.
func (l *loads) set(a kvevent.ActiveLoad) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.ranks[a.Worker]
	if r == nil {
		if len(l.ranks) == maxLoads {
			l.dropped.Add(1)
			return
		}
		r = &rankLoad{}
		l.ranks[a.Worker] = r
	}
	r.current = a
	if !r.isSent || r.sent != a {
		l.wake.Raise()
	}
}

// forget drops a rank.
func (l *loads) forget(w kv.Worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ranks, w)
}

// run publishes the changed loads of the ranks until stop is closed: loadDebounce after the first
// change, so that one message covers a burst, and at every tick those that the connection did
// not take.
func (l *loads) run(stop <-chan struct{}) {
	debounce := time.NewTimer(time.Hour) // the first change sets the time
	defer debounce.Stop()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	waiting := false // for debounce
	for {
		select {
		case <-stop:
			return
		case <-l.wake:
			if !waiting {
				waiting = true
				debounce.Reset(loadDebounce)
			}
		case <-debounce.C:
			waiting = false
			l.publish()
		case <-tick.C:
			l.publish()
		}
	}
}

// publish sends every load that changed, one message for each rank. After a lost connection it
// sends all loads, because any of them may be lost. A load that the connection refuses stays
// changed, for the next call.
func (l *loads) publish() {
	if !l.conn.Connected() {
		l.disconnected = true // changed then returns all loads
		return
	}
	for _, a := range l.changed() {
		l.buf = kvevent.AppendLoadEnvelope(l.buf[:0], l.publisher, l.sequence, uint64(time.Now().UnixMilli()), &a)
		l.sequence++
		if err := l.conn.Publish(l.subject, l.buf); err != nil {
			l.errors.Add(1)
			l.log.Debug("load message is not sent", zap.Error(err))
			continue
		}
		l.sentCount.Add(1)
		l.markSent(a)
	}
}

// changed returns the loads that differ from those sent last. After a lost connection it returns
// the loads of all ranks.
func (l *loads) changed() []kvevent.ActiveLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []kvevent.ActiveLoad
	for _, r := range l.ranks {
		r.isSent = r.isSent && !l.disconnected
		if !r.isSent || r.sent != r.current {
			all = append(all, r.current)
		}
	}
	l.disconnected = false
	return all
}

// markSent records that a load was sent.
func (l *loads) markSent(a kvevent.ActiveLoad) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.ranks[a.Worker]; r != nil {
		r.sent, r.isSent = a, true
	}
}
