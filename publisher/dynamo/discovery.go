package dynamo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// touchEvery is the time between two touches of a record. Readers delete a record that was not
// touched for ten seconds.
const touchEvery = 3 * time.Second

// directory has this process's records in a discovery directory.
type directory struct {
	root string
	log  *zap.Logger

	// errors counts failed touches and removals, restored the records that other processes
	// had deleted.
	errors, restored atomic.Uint64

	mu      sync.Mutex
	records map[string]*heldRecord // by file
}

// heldRecord is a record that this process keeps alive.
type heldRecord struct {
	content []byte
	// deleted, unless nil, is called without locks after touch has restored the deleted
	// record.
	deleted func()
}

func newDirectory(root string, log *zap.Logger) *directory {
	return &directory{root: root, log: log, records: make(map[string]*heldRecord)}
}

// put writes record as JSON to a file, replacing an existing one, and keeps it alive until remove.
// Each time another process has deleted the file and touch has restored it, touch calls deleted,
// unless deleted is nil.
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

// write replaces a record's file atomically, so that no reader sees a part of the content. The
// temporary file is in the root, where no reader looks for records. After an error it is removed.
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

// remove deletes a record. A missing record is no error.
func (d *directory) remove(file string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removeLocked(file)
}

// removeLocked deletes a record of this process, and counts a failure. Other files stay.
func (d *directory) removeLocked(file string) {
	if _, ok := d.records[file]; !ok {
		return
	}
	delete(d.records, file)
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.errors.Add(1)
		d.log.Warn("a discovery record cannot be removed", zap.Error(err))
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

// touch renews the modification time of every record and restores deleted records. Then it calls
// the callbacks of the restored ones, without the lock.
func (d *directory) touch() {
	for _, deleted := range d.touchRecords() {
		deleted()
	}
}

// touchRecords sets the time of every record file to now, because routers ignore a record that is
// not touched for ten seconds. It writes deleted files again, and returns the callbacks of these
// records, which the caller calls without the lock.
func (d *directory) touchRecords() (callbacks []func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for file, r := range d.records {
		err := os.Chtimes(file, now, now)
		if errors.Is(err, fs.ErrNotExist) {
			err = d.write(file, r.content)
			if err == nil {
				d.restored.Add(1)
				d.log.Warn("a deleted discovery record is restored", zap.String("file", filepath.Base(file)))
				if r.deleted != nil {
					callbacks = append(callbacks, r.deleted)
				}
			}
		}
		if err != nil {
			d.errors.Add(1)
			d.log.Warn("a discovery record cannot be touched", zap.Error(err))
		}
	}
	return callbacks
}

// holds reports whether a file is a record of this process.
func (d *directory) holds(file string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.records[file]
	return ok
}

// bucketSources is the subdirectory for publishers of events.
const bucketSources = "event_sources"

// endpointName is an endpoint in a record.
type endpointName struct {
	Namespace string `json:"namespace"`
	Component string `json:"component"`
	Name      string `json:"name"`
}

// scope names the endpoint that a record belongs to.
type scope struct {
	Kind     string       `json:"kind"`
	Endpoint endpointName `json:"endpoint"`
}

// workerName is a worker rank in a record.
type workerName struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"dp_rank"`
}

// sourceRecord says that a publisher has the events of a worker rank.
type sourceRecord struct {
	Type        string         `json:"type"`
	Scope       scope          `json:"scope"`
	Topic       string         `json:"topic"`
	PublisherID uint64         `json:"publisher_id"`
	Metadata    sourceMetadata `json:"metadata"`
}

type sourceMetadata struct {
	StateEndpoint endpointName    `json:"kv_state_endpoint"`
	Worker        workerName      `json:"worker"`
	PublisherID   uint64          `json:"publisher_id"`
	Recovery      *instanceRecord `json:"recovery_target,omitempty"`
}

// instanceRecord is an endpoint that a process serves.
type instanceRecord struct {
	Type       string    `json:"type,omitempty"`
	Component  string    `json:"component"`
	Endpoint   string    `json:"endpoint"`
	Namespace  string    `json:"namespace"`
	InstanceID uint64    `json:"instance_id"`
	Transport  transport `json:"transport"`
	Codec      string    `json:"request_plane_codec"`
}

type transport struct {
	TCP string `json:"tcp"`
}

// recordPath returns the file of the record with a key.
func (o *Options) recordPath(bucket, key string) string {
	return filepath.Join(o.FileKV, "v1", bucket, escape(key, alphanumeric))
}

func (o *Options) sourceKey(publisher uint64) string {
	return fmt.Sprintf("namespace/%s/component/%s/endpoint/%s/topic/%s/%x",
		o.Namespace, o.Component, o.Endpoint, kvevent.Topic, publisher)
}

func (o *Options) endpoint() endpointName {
	return endpointName{Namespace: o.Namespace, Component: o.Component, Name: o.Endpoint}
}

// sourceRecord returns the discovery record that tells routers: this publisher has the events of
// worker rank w. target is where they query for lost events; nil if they cannot.
func (o *Options) sourceRecord(publisher uint64, w kv.Worker, target *instanceRecord) sourceRecord {
	return sourceRecord{
		Type:        "EventSource",
		Scope:       scope{Kind: "endpoint", Endpoint: o.endpoint()},
		Topic:       kvevent.Topic,
		PublisherID: publisher,
		Metadata: sourceMetadata{
			StateEndpoint: o.endpoint(),
			Worker:        workerName{WorkerID: uint64(w.ID), Rank: uint32(w.Rank)},
			PublisherID:   publisher,
			Recovery:      target,
		},
	}
}

// queryEndpoint returns the name of the endpoint that answers for a publisher.
func queryEndpoint(publisher uint64) string {
	return fmt.Sprintf("worker_kv_query_source_%x", publisher)
}

// queryPath returns the path that a request for a publisher names.
func (o *Options) queryPath(instance, publisher uint64) string {
	return fmt.Sprintf("%x/%s/%s/%s", instance, o.Namespace, o.Component, queryEndpoint(publisher))
}

// recoveryTarget returns the part of a publisher's record that tells routers where to send its
// recovery queries: to address, the host:port of the plane's recovery server.
func (o *Options) recoveryTarget(address string, instance, publisher uint64) *instanceRecord {
	return &instanceRecord{
		Component:  o.Component,
		Endpoint:   queryEndpoint(publisher),
		Namespace:  o.Namespace,
		InstanceID: instance,
		Transport:  transport{TCP: address + "/" + o.queryPath(instance, publisher)},
		Codec:      "msgpack",
	}
}

const (
	// recordLife is the time for which readers accept a record after a touch.
	recordLife = 10 * time.Second
	// maxRecords bounds the records of other processes that are read, maxRecord the bytes of
	// each.
	maxRecords = 1024
	maxRecord  = 64 << 10
)

// watchRivals counts the rivals: sources of other processes for our ranks. It logs when
// their number changes, because routers ignore a rank with two sources.
func (p *Plane) watchRivals() {
	found := p.rivals()
	if before := p.rivalSources.Swap(uint64(len(found))); before == uint64(len(found)) {
		return
	}
	for file, w := range found {
		p.log.Warn("another process publishes a worker of this plane: routers ignore both sources while it lives",
			zap.Stringer("worker", w), zap.String("record", file))
	}
}

// rivals returns the worker ranks of this plane for which another process has a discovery record
// too, by the record's file name: routers would get events of the rank twice. A directory that
// cannot be read gives none. At most maxRecords files are looked at.
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
	dir := filepath.Dir(p.opt.recordPath(bucketSources, p.opt.sourceKey(1))) // the same for every id
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
		if p.directory.holds(file) { // our own record
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

// readSourceRecord reads a record of another process; false when it is too old or cannot
// be read.
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
