package dynamo

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// recordLife is how long a record counts after it was touched.
	recordLife = 10 * time.Second
	// maxRecords and maxRecord bound what is read of others' records: their number,
	// and the bytes of each.
	maxRecords = 1024
	maxRecord  = 64 << 10
)

// watchRivals counts the sources of others for the ranks of ours, and says when
// there is another number of them: routers ignore a rank that two sources speak for.
func (p *Plane) watchRivals() {
	found := p.rivals()
	if before := p.rivalSources.Swap(uint64(len(found))); before == uint64(len(found)) {
		return
	}
	for file, w := range found {
		p.log.Warn("another source speaks for a worker: routers ignore both while it lives",
			zap.Stringer("worker", w), zap.String("record", file))
	}
}

// rivals are the records of others that speak for a rank of ours, by file name.
func (p *Plane) rivals() map[string]kv.Worker {
	ours := make(map[kv.Worker]bool)
	p.mu.Lock()
	for s := range p.sources {
		ours[s.worker] = true
	}
	p.mu.Unlock()
	found := make(map[string]kv.Worker)
	if len(ours) == 0 {
		return found
	}
	dir := filepath.Dir(p.opt.recordPath(bucketSources, p.opt.sourceKey(1)))
	d, err := os.Open(dir)
	if err != nil {
		return found
	}
	defer d.Close()
	names, err := d.Readdirnames(maxRecords)
	if err != nil {
		return found
	}
	for _, name := range names {
		file := filepath.Join(dir, name)
		if p.directory.holds(file) {
			continue
		}
		r, ok := readSourceRecord(file)
		w := kv.Worker{ID: kv.WorkerID(r.Metadata.Worker.WorkerID), Rank: kv.DPRank(r.Metadata.Worker.Rank)}
		if ok && ours[w] && r.Metadata.StateEndpoint == p.opt.endpoint() {
			found[name] = w
		}
	}
	return found
}

// readSourceRecord reads another's record; false when it is old or is none.
func readSourceRecord(file string) (r sourceRecord, ok bool) {
	f, err := os.Open(file)
	if err != nil {
		return r, false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) > recordLife {
		return r, false
	}
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	return r, err == nil && json.Unmarshal(b, &r) == nil
}
