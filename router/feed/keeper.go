package feed

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// snapshotLoadTimeout ends a load to which no bytes come. Loading delays the router's start.
const snapshotLoadTimeout = 15 * time.Second

// lastSaveTimeout bounds the time to save the last snapshot, of about size bytes. The router's end waits for it.
func lastSaveTimeout(size uint64) time.Duration {
	const least, most, leastRate = 5 * time.Second, 3 * time.Minute, 32 << 20 // bytes a second
	return min(least+time.Duration(min(size, 1<<33))*time.Second/leastRate, most)
}

// Keeper saves snapshots of a Set and restores the stored one. Its methods, except HasStore, Want
// and Stats, are for one goroutine.
type Keeper struct {
	store     source.SnapshotStore // nil saves nothing
	threshold uint64
	reset     bool
	feeds     *Set
	log       *zap.Logger

	// savedEvents is the Set's count of events when the last snapshot began.
	savedEvents uint64
	goroutines  sync.WaitGroup
	busy        atomic.Bool
	wanted      atomic.Bool // Want was called since the last snapshot began
	unsaved     atomic.Bool // the last save failed
	saves       atomic.Uint64
	failed      atomic.Uint64
	loads       atomic.Uint64
}

// KeeperOptions configure a Keeper.
type KeeperOptions struct {
	// Store keeps the snapshots; nil keeps nothing.
	Store source.SnapshotStore
	// Threshold is the number of events between two snapshots; 0 saves none.
	Threshold uint64
	// Reset discards the stored snapshot at the start.
	Reset bool
	Log   *zap.Logger
}

// NewKeeper returns a Keeper of the snapshots of feeds.
func NewKeeper(o KeeperOptions, feeds *Set) *Keeper {
	return &Keeper{store: o.Store, threshold: o.Threshold, reset: o.Reset, feeds: feeds, log: o.Log}
}

// Start restores the feeds and returns the stream position of the snapshot, 0 without a
// snapshot. A failure costs only time: the feeds then query every publisher for a dump.
func (k *Keeper) Start(ctx context.Context) (position uint64) {
	if k.store == nil {
		return 0
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	waiting := time.AfterFunc(snapshotLoadTimeout, cancel) // begins again with every read
	defer waiting.Stop()
	if k.reset { // the router is configured to begin without the snapshot
		if err := k.store.ForgetSnapshot(ctx); err != nil {
			k.failed.Add(1)
			k.log.Warn("the stored snapshot cannot be discarded", zap.Error(err))
		}
		return 0
	}
	feeds := 0
	err := k.store.LoadSnapshot(ctx, func(r io.Reader) (err error) {
		k.feeds.forgetRestored() // the store may have begun again with a newer snapshot
		position, feeds, err = k.feeds.restore(&patientReader{r, waiting}, time.Now())
		return err
	})
	if err != nil { // the store verifies its checksum last, after the feeds were restored
		k.feeds.forgetRestored()
	}
	switch {
	case errors.Is(err, errOldSnapshot):
		k.log.Warn("no snapshot of this version is stored", zap.Error(err))
		return 0
	case errors.Is(err, source.ErrNoSnapshot):
		k.log.Info("no snapshot is stored")
		return 0
	case err != nil:
		k.failed.Add(1)
		k.log.Warn("the stored snapshot cannot be used", zap.Error(err))
		return 0
	}
	k.loads.Add(1)
	k.log.Info("snapshot is loaded", zap.Int("feeds", feeds), zap.Uint64("position", position))
	return position
}

// patientReader lets waiting begin again with each read that brings bytes.
type patientReader struct {
	r       io.Reader
	waiting *time.Timer
}

// Read implements io.Reader.
func (p *patientReader) Read(b []byte) (n int, err error) {
	p.waiting.Reset(snapshotLoadTimeout)
	n, err = p.r.Read(b)
	for n == 0 && err == nil && len(b) > 0 { // the store has looked in vain, so that waiting goes on
		n, err = p.r.Read(b)
	}
	return n, err
}

// HasStore reports whether snapshots are kept anywhere.
func (k *Keeper) HasStore() bool { return k.store != nil }

// Want has the next Keep save a snapshot, whatever Threshold is. Without a store it does nothing.
func (k *Keeper) Want() { k.wanted.Store(true) }

// Keep starts to save a snapshot if Threshold events came since the last one, or if Want asked for
// one, and none is being saved. The router calls it at each tick. Keep does not wait for the
// snapshot.
func (k *Keeper) Keep(ctx context.Context) {
	if k.store == nil {
		return
	}
	events := k.feeds.handledEvents.Load()
	due := k.threshold > 0 && events-k.savedEvents >= k.threshold
	if !due && !k.wanted.Load() || !k.busy.CompareAndSwap(false, true) {
		return
	}
	k.wanted.Store(false)
	k.savedEvents = events
	k.goroutines.Go(func() {
		defer k.busy.Store(false)
		size := k.feeds.snapshotSize()
		k.save(ctx, size, source.SnapshotSaveTimeout(size))
	})
}

// Finish waits for the snapshot in progress and saves a last one, unless nothing is new. The router
// calls it when it stops.
func (k *Keeper) Finish() {
	k.goroutines.Wait()
	isCurrent := k.feeds.handledEvents.Load() == k.savedEvents && !k.unsaved.Load()
	if k.store == nil || k.threshold == 0 || isCurrent {
		return
	}
	size := k.feeds.snapshotSize()
	limit := lastSaveTimeout(size)
	k.log.Info("the last snapshot is being saved", zap.Uint64("most_bytes", size), zap.Duration("limit", limit))
	k.save(context.Background(), size, limit)
}

// save saves a snapshot of about size bytes, counts and logs the result. It gives up after limit.
func (k *Keeper) save(ctx context.Context, size uint64, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	err := k.store.SaveSnapshot(ctx, size, k.feeds.save)
	k.unsaved.Store(err != nil)
	if err != nil {
		k.failed.Add(1)
		k.log.Warn("snapshot is not saved", zap.Uint64("most_bytes", size), zap.Duration("limit", limit), zap.Error(err))
		return
	}
	k.saves.Add(1)
	k.log.Debug("snapshot is saved", zap.Duration("took", time.Since(began)))
}

// SnapshotStats counts stored snapshots. The metric names follow "blockyard_router_".
type SnapshotStats struct {
	Saved  uint64 `metric:"snapshots_saved" help:"Snapshots of the index stored."`
	Loaded uint64 `metric:"snapshots_loaded" help:"Stored snapshots restored at the start."`
	Failed uint64 `metric:"snapshots_failed" help:"Snapshots that could not be stored, read or discarded."`
}

// Stats returns the counters.
func (k *Keeper) Stats() SnapshotStats {
	return SnapshotStats{Saved: k.saves.Load(), Loaded: k.loads.Load(), Failed: k.failed.Load()}
}

// snapshotSize returns how many bytes a snapshot takes at most, but for blocks under foreign hashes. It
// counts the blocks of complete feeds in the index, because a publisher may announce any number.
func (s *Set) snapshotSize() (bytes uint64) {
	const feedBytes, blockBytes = 1 << 10, 19 // a run of one block takes 19 bytes, a block of a long run 8
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.feeds {
		if !f.complete() {
			continue
		}
		_, pairs := f.index.Digest(f.owner())
		_, groupPairs := f.index.GroupDigest(f.owner())
		bytes += feedBytes + blockBytes*(pairs+groupPairs)
	}
	return bytes
}

// save writes a snapshot of the complete feeds: those whose blocks are all in the index. It reads
// the stream position first, so that every feed is at the position or ahead. Events go on
// meanwhile.
func (s *Set) save(w io.Writer) error {
	s.mu.Lock()
	position := s.streamPosition
	publishers := make([]uint64, 0, len(s.feeds))
	for id := range s.feeds {
		publishers = append(publishers, id)
	}
	s.mu.Unlock()
	out, err := newSnapshotWriter(w, position)
	if err != nil {
		return err
	}
	var image feedImage
	for _, id := range publishers {
		if !s.imageOf(id, &image) {
			continue
		}
		if err := out.add(&image); err != nil {
			return err
		}
	}
	return out.finish()
}

// imageOf fills f with a feed, for a snapshot. It returns false when the feed is not complete.
// Events go on while imageOf dumps a large owner, so the blocks may be newer than the image's
// cursor. The last event of a block decides, so applying the events after the cursor again is
// harmless.
func (s *Set) imageOf(publisher uint64, f *feedImage) bool {
	feed, dumps := s.beginImage(publisher, f)
	if feed == nil {
		return false
	}
	feed.model.Index().DumpOwner(f.announcement.Owner, func(e *kvevent.RouterEvent) bool {
		f.store(e)
		return true
	})
	return s.confirmImage(feed, dumps)
}

// beginImage starts the image of a publisher's feed in a snapshot with the announcement and the
// cursor. It returns the feed and the feed's number of dumps, for confirmImage. The feed is nil when
// the index lacks blocks of it.
func (s *Set) beginImage(publisher uint64, f *feedImage) (feed *feed, dumps uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	feed = s.feeds[publisher]
	if feed == nil || !feed.complete() {
		return nil, 0
	}
	f.reset()
	f.announcement, f.cursor = feed.announcement, feed.cursor
	return feed, feed.counters.Dumps
}

// confirmImage reports whether the feed has stayed complete and no dump changed its blocks
// since beginImage.
func (s *Set) confirmImage(feed *feed, dumps uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	feed.updateLost()
	s.recountLocked(feed)
	return s.feeds[feed.announcement.PublisherID] == feed && feed.complete() && feed.counters.Dumps == dumps
}
