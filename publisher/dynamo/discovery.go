package dynamo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// touchEvery is how often a record is touched. Its readers delete it when nobody
// did for ten seconds.
const touchEvery = 3 * time.Second

// directory is this process's part of a discovery directory.
type directory struct {
	root string
	log  *zap.Logger

	// errors are touches and removals that failed, restored the records that had
	// been deleted by others.
	errors, restored atomic.Uint64

	mu      sync.Mutex
	records map[string]*heldRecord // by file
}

// heldRecord is a record that we stand for.
type heldRecord struct {
	content []byte
	// deleted is called, if not nil, without locks, after the record was found gone
	// and written anew.
	deleted func()
}

func newDirectory(root string, log *zap.Logger) *directory {
	return &directory{root: root, log: log, records: make(map[string]*heldRecord)}
}

// put writes a record, which is held from then on. A record that exists already is
// replaced.
func (d *directory) put(file string, record any, deleted func()) error {
	content, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("discovery record %s: %w", filepath.Base(file), err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.write(file, content); err != nil {
		return fmt.Errorf("discovery record: %w", err)
	}
	d.records[file] = &heldRecord{content: content, deleted: deleted}
	return nil
}

// write makes a file appear with its whole content. The temporary name lies in the
// root, where nobody looks for records.
func (d *directory) write(file string, content []byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(d.root, ".blockyard-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// remove deletes a record; one that is gone already is no error.
func (d *directory) remove(file string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removeLocked(file)
}

func (d *directory) removeLocked(file string) {
	if _, ok := d.records[file]; !ok {
		return
	}
	delete(d.records, file)
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.errors.Add(1)
		d.log.Warn("a discovery record stays behind", zap.Error(err))
	}
}

// removeAll deletes every record.
func (d *directory) removeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for file := range d.records {
		d.removeLocked(file)
	}
}

// touch says that the records are still held, and writes those anew that are gone.
func (d *directory) touch() {
	for _, deleted := range d.touchRecords() {
		deleted()
	}
}

// touchRecords returns whom to tell that their record had gone.
func (d *directory) touchRecords() (tell []func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for file, r := range d.records {
		err := os.Chtimes(file, now, now)
		if errors.Is(err, fs.ErrNotExist) {
			err = d.write(file, r.content)
			if err == nil {
				d.restored.Add(1)
				d.log.Warn("a discovery record had been deleted and is back", zap.String("file", filepath.Base(file)))
				if r.deleted != nil {
					tell = append(tell, r.deleted)
				}
			}
		}
		if err != nil {
			d.errors.Add(1)
			d.log.Warn("a discovery record cannot be kept alive", zap.Error(err))
		}
	}
	return tell
}

// holds reports whether a file is a record of ours.
func (d *directory) holds(file string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.records[file]
	return ok
}
