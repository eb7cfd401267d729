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
	// loadDebounce is how long a changed load waits for further changes.
	loadDebounce = time.Millisecond
	// maxLoads bounds the ranks whose load a plane follows.
	maxLoads = 4096
)

// loads publishes the load of each rank when it changed. Each rank has its own
// last value: two that change at the same time are both told.
type loads struct {
	conn      Conn
	subject   string
	publisher uint64
	log       *zap.Logger
	wake      publisher.Alarm

	sentCount, errors, dropped atomic.Uint64

	mu    sync.Mutex
	ranks map[kv.Worker]*rankLoad

	// What follows belongs to the goroutine of run.
	sequence uint64
	buf      []byte
	away     bool
}

// rankLoad is the load of one rank: what it is, and what was said of it.
type rankLoad struct {
	now, said kvevent.ActiveLoad
	told      bool // said has a meaning
}

func newLoads(conn Conn, subject string, log *zap.Logger) *loads {
	return &loads{
		conn: conn, subject: subject, publisher: kv.RandomID(), log: log,
		wake: publisher.NewAlarm(), ranks: make(map[kv.Worker]*rankLoad),
	}
}

// set notes a load.
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
	r.now = a
	if !r.told || r.said != a {
		l.wake.Raise()
	}
}

// forget drops a rank.
func (l *loads) forget(w kv.Worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ranks, w)
}

// run publishes until stop is closed.
func (l *loads) run(stop <-chan struct{}) {
	debounce := time.NewTimer(time.Hour)
	defer debounce.Stop()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	waiting := false
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

// publish says every load that changed; all of them when the connection is back,
// because nobody knows what was lost.
func (l *loads) publish() {
	if !l.conn.Connected() {
		l.away = true
		return
	}
	for _, a := range l.changed() {
		l.buf = kvevent.AppendLoadEnvelope(l.buf[:0], l.publisher, l.sequence, uint64(time.Now().UnixMilli()), &a)
		l.sequence++
		if err := l.conn.Publish(l.subject, l.buf); err != nil {
			l.errors.Add(1)
			l.log.Debug("load lost", zap.Error(err))
			continue
		}
		l.sentCount.Add(1)
		l.told(a)
	}
}

// changed are the loads to say.
func (l *loads) changed() []kvevent.ActiveLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []kvevent.ActiveLoad
	for _, r := range l.ranks {
		r.told = r.told && !l.away
		if !r.told || r.said != r.now {
			all = append(all, r.now)
		}
	}
	l.away = false
	return all
}

// told notes what was said of a rank.
func (l *loads) told(a kvevent.ActiveLoad) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.ranks[a.Worker]; r != nil {
		r.said, r.told = a, true
	}
}
