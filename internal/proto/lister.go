package proto

import (
	"context"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// lister answers LIST_CACHED from a goroutine of its own, one list at a time. Of
// the requests that come meanwhile only the latest counts.
type lister struct {
	c    *client
	list func(ctx context.Context) ([]kv.EngineHash, error)
	wake chan struct{} // room for one: asked has changed
	done chan struct{} // closed when run has ended

	mu    sync.Mutex
	asked uint64 // the requested list, 0 for none
}

func newLister(c *client, list func(context.Context) ([]kv.EngineHash, error)) *lister {
	return &lister{c: c, list: list, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// note handles the body of a LIST_CACHED, by which the agent asks for the hashes of all blocks
// that the engine caches. It wakes run. A later request replaces an earlier one.
func (l *lister) note(body []byte) error {
	var m ListCached
	if err := Decode(TypeListCached, body, &m); err != nil {
		return err
	}
	l.mu.Lock()
	l.asked = m.List
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // run is already awake
	}
	return nil
}

// run answers requests for lists, one after the other, until the connection ends. It is a
// goroutine of its own because the engine may take long to list its hashes.
func (l *lister) run() {
	defer close(l.done)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		select {
		case <-l.c.done:
			cancel()
		case <-ctx.Done():
		}
	})
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		asked := l.asked
		l.mu.Unlock()
		hashes, err := l.list(ctx)
		if err == nil {
			err = l.send(asked, hashes)
		} else {
			l.c.log.Warn("the cached hashes cannot be listed", zap.Error(err))
			err = l.c.post(TypeCached, &Cached{List: asked, Final: true, Unavailable: true})
		}
		if err != nil {
			return // the connection has ended
		}
	}
}

// send sends the hashes of a list in as many CACHED frames as necessary, at least one. list is
// the number that the agent gave the list. The last frame is final.
func (l *lister) send(list uint64, hashes []kv.EngineHash) error {
	last := Cached{List: list, Final: true}
	parts := slices.Collect(slices.Chunk(hashes, MaxListedPerFrame))
	for i, part := range parts {
		packed := AppendHashes(nil, part)
		if i == len(parts)-1 {
			last.Hashes = packed
			break
		}
		if err := l.c.post(TypeCached, &Cached{List: list, Hashes: packed}); err != nil {
			return err
		}
	}
	return l.c.post(TypeCached, &last)
}
