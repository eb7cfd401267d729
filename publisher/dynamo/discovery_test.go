package dynamo

import (
	"bufio"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// files are the files below a directory and their content.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestTheSourceRecordIsFrozen holds what routers parse.
func TestTheSourceRecordIsFrozen(t *testing.T) {
	o := Options{Namespace: "n", Component: "c", Endpoint: "e"}
	w := kv.Worker{ID: 1<<64 - 1, Rank: 3}
	const scope = `"scope":{"kind":"endpoint","endpoint":{"namespace":"n","component":"c","name":"e"}}`
	const common = `{"type":"EventSource",` + scope + `,"topic":"kv-events","publisher_id":255,` +
		`"metadata":{"kv_state_endpoint":{"namespace":"n","component":"c","name":"e"},` +
		`"worker":{"worker_id":18446744073709551615,"dp_rank":3},"publisher_id":255`
	target := o.recoveryTarget("h:1", 16, 255)
	for want, record := range map[string]sourceRecord{
		common + `}}`: o.sourceRecord(255, w, nil),
		common + `,"recovery_target":{"component":"c","endpoint":"worker_kv_query_source_ff","namespace":"n","instance_id":16,` +
			`"transport":{"tcp":"h:1/10/n/c/worker_kv_query_source_ff"},"request_plane_codec":"msgpack"}}}`: o.sourceRecord(255, w, target),
	} {
		got, err := json.Marshal(record)
		if err != nil || string(got) != want {
			t.Errorf("got  %s\nwant %s\n%v", got, want, err)
		}
	}
}

// sharedDir is where recordings of Dynamo lie: the directory named by
// BLOCKYARD_SHARED, or else shared beside the repository. They are too large to be
// part of it; without them the test is skipped.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("BLOCKYARD_SHARED")
	if dir == "" {
		root, err := filepath.Abs(filepath.Join("..", ".."))
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(filepath.Dir(root), "shared")
	}
	if _, err := os.Stat(filepath.Join(dir, "golden", "dynamo-1.6")); err != nil {
		t.Skipf("no recordings in %s", dir)
	}
	return filepath.Join(dir, "golden", "dynamo-1.6")
}

// TestRecordsOfDynamoAreReproduced makes the recorded source record and a worker's
// records from what they say, and wants the same paths and content.
func TestRecordsOfDynamoAreReproduced(t *testing.T) {
	f, err := os.Open(filepath.Join(sharedDir(t), "discovery-file-backend.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o := Options{Namespace: "dynamo", Component: "backend", Endpoint: "generate"}
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var l struct {
			Kind, Path string
			Content    json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		path, record := remake(t, &o, l.Content)
		if record == nil {
			continue
		}
		got, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		if path != l.Path {
			t.Errorf("path %s, want %s", path, l.Path)
		}
		if diff := cmp.Diff(decode(t, l.Content), decode(t, got)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", path, diff)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d records were made anew, want 1", n)
	}
}

// decode reads JSON without rounding numbers, and leaves out what a record need
// not say.
func decode(t *testing.T, b []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	delete(v, "device_type")
	if m, ok := v["metadata"].(map[string]any); ok {
		if target, ok := m["recovery_target"].(map[string]any); ok {
			delete(target, "device_type")
		}
	}
	return v
}

// remake is the record that we would write for what a recorded one is about; nil
// for kinds that we do not write.
func remake(t *testing.T, o *Options, content []byte) (path string, record any) {
	t.Helper()
	var r struct {
		Type        string
		PublisherID uint64 `json:"publisher_id"`
		Metadata    struct {
			Worker struct {
				WorkerID uint64 `json:"worker_id"`
			}
			Recovery *instanceRecord `json:"recovery_target"`
		}
	}
	if json.Unmarshal(content, &r) != nil {
		return "", nil
	}
	if r.Type != "EventSource" {
		return "", nil
	}
	address, _, _ := strings.Cut(r.Metadata.Recovery.Transport.TCP, "/")
	target := o.recoveryTarget(address, r.Metadata.Recovery.InstanceID, r.PublisherID)
	path = o.recordPath(bucketSources, o.sourceKey(r.PublisherID))
	return path, o.sourceRecord(r.PublisherID, kv.Worker{ID: kv.WorkerID(r.Metadata.Worker.WorkerID)}, target)
}

// TestTheDirectoryHoldsOurRecordsAndNothingElse also checks that files of others
// keep their content and their age.
func TestTheDirectoryHoldsOurRecordsAndNothingElse(t *testing.T) {
	o := testOptions(t)
	theirs := filepath.Join(o.FileKV, "v1", bucketSources, "theirs")
	if err := os.MkdirAll(filepath.Dir(theirs), 0o755); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.WriteFile(theirs, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(theirs, old, old); err != nil {
		t.Fatal(err)
	}
	p := openPlane(t, o, &fakeConn{})
	s := addSource(t, p, newFakeStream())
	if got := files(t, o.FileKV); len(got) != 2 {
		t.Errorf("%v", got)
	}
	if err := os.Chtimes(s.record, old, old); err != nil {
		t.Fatal(err)
	}
	p.directory.touch()
	for file, fresh := range map[string]bool{s.record: true, theirs: false} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.ModTime().After(old.Add(time.Minute)) != fresh {
			t.Errorf("%s is of %s", file, info.ModTime())
		}
	}
	s.Close()
	if _, err := os.Stat(s.record); err == nil {
		t.Error("the record of a closed source is there")
	}
	closePlane(t, p)
	if got := files(t, o.FileKV); len(got) != 1 || p.Stats().RecordErrors != 0 {
		t.Errorf("%v, %+v", got, p.Stats())
	}
}

func TestADirectoryThatCannotBeWrittenIsAnError(t *testing.T) {
	o := testOptions(t)
	file := filepath.Join(o.FileKV, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	o.FileKV = file
	if _, err := Open(t.Context(), o, &fakeConn{}); err == nil {
		t.Error("a file was taken for the directory")
	}
}

// TestASecondSourceOfARankIsNoticed: old records, those of other ranks and what is
// no record do not count.
func TestASecondSourceOfARankIsNoticed(t *testing.T) {
	o := testOptions(t)
	p := openPlane(t, o, &fakeConn{})
	addSource(t, p, newFakeStream())
	rivals := func() uint64 {
		p.watchRivals()
		return p.Stats().RivalSources
	}
	write := func(publisher uint64, w kv.Worker) string {
		t.Helper()
		file := o.recordPath(bucketSources, o.sourceKey(publisher))
		b, err := json.Marshal(o.sourceRecord(publisher, w, nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write(1, kv.Worker{ID: testWorker.ID})
	if err := os.WriteFile(o.recordPath(bucketSources, "noise"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n := rivals(); n != 0 {
		t.Errorf("%d rivals", n)
	}
	file := write(2, testWorker)
	if n := rivals(); n != 1 {
		t.Errorf("%d rivals, want 1", n)
	}
	old := time.Now().Add(-2 * recordLife)
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	if n := rivals(); n != 0 {
		t.Errorf("%d rivals after one ended", n)
	}
}
