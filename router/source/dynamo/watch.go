package dynamo

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Bounds of the discovery directory. Dynamo's workers touch their files every three to four
// seconds. Dynamo deletes a file that nobody touched for ten seconds.
const (
	maxRecords     = 1 << 14
	maxRecordBytes = 1 << 20
	staleAfter     = 12 * time.Second
)

// view holds the records of an endpoint in the discovery directory.
type view struct {
	cards   map[kv.WorkerID]card
	origins map[kv.Worker][]origin
	// bad are the unusable files with their reasons, in order.
	bad []string
}

// record is a discovery file and its decoded content.
type record struct {
	info os.FileInfo
	// changedAt is when this state of the file was first seen, by the local clock.
	changedAt time.Time
	card      *card
	origin    *origin
	err       error
}

// watcher reads the discovery directory of one endpoint. It is for one goroutine.
type watcher struct {
	dir      string
	endpoint Endpoint
	records  map[string]*record // by path
}

func newWatcher(dir string, e Endpoint) *watcher {
	return &watcher{dir: dir, endpoint: e, records: make(map[string]*record)}
}

// watch is the goroutine that reads the discovery directory every PollEvery until Close, and passes
// each view to run. An error that repeats is logged once.
func (t *Source) watch(views chan<- view) {
	w := newWatcher(t.options.Directory, t.options.Endpoint)
	ticker := time.NewTicker(t.options.PollEvery)
	defer ticker.Stop()
	failed := ""
	for {
		v, err := w.scan(time.Now())
		switch {
		case err == nil:
			failed = ""
			select {
			case views <- v:
			case <-t.ctx.Done():
				return
			}
		case err.Error() != failed:
			failed = err.Error()
			t.log.Warn("discovery directory cannot be read; the last view stays", zap.Error(err))
		}
		select {
		case <-ticker.C:
		case <-t.ctx.Done():
			return
		}
	}
}

// scan reads the files that have changed and returns the view. After an error the previous
// view stays valid.
func (w *watcher) scan(now time.Time) (view, error) {
	seen := make(map[string]*record)
	for _, bucket := range []struct{ name, prefix string }{
		{"mdc", w.endpoint.cardPrefix()},
		{"event_sources", w.endpoint.sourcePrefix()},
	} {
		if err := w.bucket(seen, filepath.Join(w.dir, "v1", bucket.name), bucket.prefix, now); err != nil {
			return view{}, err
		}
	}
	w.records = seen
	return w.view(now), nil
}

// bucket adds the discovery records of one directory to seen, by path: the files whose names are
// prefix and a hexadecimal id. Other files are ignored. A missing directory counts as empty: Dynamo
// creates it with the first record. More than maxRecords in seen are an error.
func (w *watcher) bucket(seen map[string]*record, dir, prefix string, now time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("discovery: %w", err)
	}
	for _, e := range entries {
		id, ok := strings.CutPrefix(e.Name(), prefix)
		if !ok || id == "" || strings.Trim(id, "0123456789abcdef") != "" {
			continue
		}
		if len(seen) == maxRecords {
			return fmt.Errorf("discovery: %s: more than %d records", dir, maxRecords)
		}
		path := filepath.Join(dir, e.Name())
		if r := w.read(path, now); r != nil {
			seen[path] = r
		}
	}
	return nil
}

// read returns the discovery record of the file at path. A file with the old size and time gives
// the old record: its changedAt stays, so that a file that nobody touches becomes stale. A missing
// file gives nil. A file that cannot be used gives a record with an error.
func (w *watcher) read(path string, now time.Time) *record {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	old := w.records[path]
	if err != nil {
		return &record{changedAt: now, err: err}
	}
	if old != nil && old.info != nil && os.SameFile(old.info, info) &&
		old.info.ModTime().Equal(info.ModTime()) && old.info.Size() == info.Size() {
		return old
	}
	r := &record{info: info, changedAt: now}
	if info.Size() > maxRecordBytes || !info.Mode().IsRegular() {
		r.err = fmt.Errorf("not a regular file of at most %d bytes", maxRecordBytes)
		return r
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if r.err = err; err == nil {
		r.decode(filepath.Base(filepath.Dir(path)), data, w.endpoint)
	}
	return r
}

// decode decodes the content of a file in the bucket of model cards or of event sources.
func (r *record) decode(bucket string, data []byte, e Endpoint) {
	if bucket == "mdc" { // model cards
		c, err := decodeCard(data, e)
		r.card, r.err = &c, err
		return
	}
	o, err := decodeOrigin(data, e)
	r.origin, r.err = &o, err
}

// view returns the model cards and event sources of the records that are not stale, and the records
// with errors.
func (w *watcher) view(now time.Time) view {
	v := view{cards: make(map[kv.WorkerID]card), origins: make(map[kv.Worker][]origin)}
	for _, path := range slices.Sorted(maps.Keys(w.records)) {
		switch r := w.records[path]; {
		case now.Sub(r.changedAt) > staleAfter: // nobody touches the file: its process has ended
		case r.err != nil:
			v.bad = append(v.bad, fmt.Sprintf("%s: %v", filepath.Base(path), r.err))
		case r.card != nil:
			v.cards[r.card.worker] = *r.card
		case r.origin != nil:
			v.origins[r.origin.worker] = append(v.origins[r.origin.worker], *r.origin)
		}
	}
	for _, all := range v.origins {
		slices.SortFunc(all, func(a, b origin) int { return cmp.Compare(a.publisher, b.publisher) })
	}
	return v
}
