package dynamo

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

var endpoint = Endpoint{"dynamo", "backend", "generate"}

// directory is a discovery directory of a test.
type directory struct {
	t   *testing.T
	dir string
}

func newDirectory(t *testing.T) *directory { return &directory{t, t.TempDir()} }

// put writes a record under a key, whole at once, and returns its path.
func (d *directory) put(bucket, key string, record any) string {
	d.t.Helper()
	data, err := json.Marshal(record)
	if err != nil {
		d.t.Fatal(err)
	}
	path := filepath.Join(d.dir, "v1", bucket, escape(key, ""))
	draft := filepath.Join(d.dir, "draft")
	for _, err := range []error{
		os.MkdirAll(filepath.Dir(path), 0o755),
		os.WriteFile(draft, data, 0o644),
		os.Rename(draft, path),
	} {
		if err != nil {
			d.t.Fatal(err)
		}
	}
	return path
}

func (d *directory) card(worker uint64, ranks int) string {
	return d.put("mdc", fmt.Sprintf("dynamo/backend/generate/%x", worker), map[string]any{
		"type": "Model", "namespace": "dynamo", "component": "backend", "endpoint": "generate", "instance_id": worker,
		"card_json": map[string]any{"display_name": "tiny", "kv_cache_block_size": 16,
			"runtime_config": map[string]any{"data_parallel_start_rank": 0, "data_parallel_size": ranks,
				"total_kv_blocks": 512, "max_num_batched_tokens": 8192, "max_num_seqs": nil, "enable_eagle": worker%2 == 1}},
	})
}

func (d *directory) source(o origin) string {
	name := map[string]string{"namespace": "dynamo", "component": "backend", "name": "generate"}
	metadata := map[string]any{
		"kv_state_endpoint": name, "publisher_id": o.publisher,
		"worker": map[string]any{"worker_id": uint64(o.worker.ID), "dp_rank": uint32(o.worker.Rank)},
	}
	if o.target.address != "" {
		metadata["recovery_target"] = map[string]any{"transport": map[string]string{"tcp": o.target.String()}}
	}
	return d.put("event_sources", fmt.Sprintf("namespace/dynamo/component/backend/endpoint/generate/topic/kv-events/%x", o.publisher),
		map[string]any{"type": "EventSource", "topic": "kv-events", "publisher_id": o.publisher,
			"scope": map[string]any{"kind": "endpoint", "endpoint": name}, "metadata": metadata})
}

func scan(t *testing.T, w *watcher, now time.Time) view {
	t.Helper()
	v, err := w.scan(now)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var records = cmp.AllowUnexported(card{}, origin{}, target{})

func TestWatcherReadsWorkersAndSources(t *testing.T) {
	const worker = 1<<64 - 3 // more than a float holds
	d := newDirectory(t)
	w := newWatcher(d.dir, endpoint)
	if v := scan(t, w, start); len(v.cards)+len(v.origins)+len(v.bad) != 0 {
		t.Errorf("a directory that is not there: %+v", v)
	}
	one := origin{publisher: 11, worker: kv.Worker{ID: worker, Rank: 1}, target: target{"192.0.2.2:42877", "ab/dynamo/backend/x"}}
	two := origin{publisher: 12, worker: kv.Worker{ID: worker}}
	d.card(worker, 2)
	d.source(one)
	d.source(two)
	d.put("mdc", "dynamo/backend/generate/a/some-adapter", "not a card of its own")
	d.put("mdc", "dynamo/backend/generate/b", map[string]any{"type": "Model"})
	d.put("mdc", "dynamo/other/generate/c", "of another component")
	v := scan(t, w, start)
	want := map[kv.WorkerID]card{worker: {worker: worker, model: "tiny", blockSize: 16, ranks: 2, deviceBlocks: 512, batchedTokens: 8192, eagle: true}}
	if diff := cmp.Diff(want, v.cards, records); diff != "" {
		t.Errorf("cards (-want +got)\n%s", diff)
	}
	origins := map[kv.Worker][]origin{one.worker: {one}, two.worker: {two}}
	if diff := cmp.Diff(origins, v.origins, records); diff != "" {
		t.Errorf("sources (-want +got)\n%s", diff)
	}
	if len(v.bad) != 1 || !strings.Contains(v.bad[0], "namespace, component, endpoint") {
		t.Errorf("bad records %q, want the card without a place", v.bad)
	}
	three := two
	three.publisher = 13
	path := d.source(three)
	if v := scan(t, w, start); len(v.origins[two.worker]) != 2 {
		t.Errorf("two sources of one rank: %+v", v.origins)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if v := scan(t, w, start); len(v.origins[two.worker]) != 1 {
		t.Errorf("after one has gone: %+v", v.origins)
	}
}

// TestWatcherForgetsWhatNobodyTouches: the age of a record is how long it was
// seen unchanged; what its own time says does not matter.
func TestWatcherForgetsWhatNobodyTouches(t *testing.T) {
	d := newDirectory(t)
	w := newWatcher(d.dir, endpoint)
	path := d.card(7, 1)
	long := time.Unix(1, 0)
	if err := os.Chtimes(path, long, long); err != nil {
		t.Fatal(err)
	}
	now := start
	if v := scan(t, w, now); len(v.cards) != 1 {
		t.Error("a record is stale at first sight")
	}
	for range 5 {
		now = now.Add(staleAfter)
		long = long.Add(time.Second)
		if err := os.Chtimes(path, long, long); err != nil {
			t.Fatal(err)
		}
		if v := scan(t, w, now); len(v.cards) != 1 {
			t.Error("a record that is touched is stale")
		}
	}
	if v := scan(t, w, now.Add(staleAfter+time.Millisecond)); len(v.cards) != 0 {
		t.Error("a record that nobody touches is live")
	}
}

func TestRecordsOfBadFormAreRefusedByField(t *testing.T) {
	for name, c := range map[string]struct{ field, record string }{
		"not JSON":   {"model card", `{`},
		"block size": {"kv_cache_block_size", `{"type":"Model","namespace":"dynamo","component":"backend","endpoint":"generate","instance_id":1,"card_json":{"kv_cache_block_size":0}}`},
		"ranks":      {"data_parallel_size", `{"type":"Model","namespace":"dynamo","component":"backend","endpoint":"generate","instance_id":1,"card_json":{"kv_cache_block_size":16,"runtime_config":{"data_parallel_size":2000}}}`},
		"instance":   {"instance_id", `{"type":"Model","namespace":"dynamo","component":"backend","endpoint":"generate"}`},
		"name":       {"display_name", `{"type":"Model","namespace":"dynamo","component":"backend","endpoint":"generate","instance_id":1,"card_json":{"display_name":"m\u001b[2J","kv_cache_block_size":16}}`},
		"elsewhere":  {"kv_state_endpoint", `{"type":"Model","namespace":"dynamo","component":"backend","endpoint":"generate","instance_id":1,"card_json":{"kv_cache_block_size":16,"runtime_config":{"kv_state_endpoint":{"namespace":"x"}}}}`},
	} {
		if _, err := decodeCard([]byte(c.record), endpoint); err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: error %v, want one that names %s", name, err, c.field)
		}
	}
	for name, c := range map[string]struct{ field, record string }{
		"type":      {"type", `{"type":"EventChannel"}`},
		"topic":     {"topic", `{"type":"EventSource","topic":"kv_metrics"}`},
		"scope":     {"scope", `{"type":"EventSource","topic":"kv-events","scope":{"kind":"component"}}`},
		"publisher": {"publisher_id", `{"type":"EventSource","topic":"kv-events","publisher_id":1,"scope":{"kind":"endpoint","endpoint":{"namespace":"dynamo","component":"backend","name":"generate"}},"metadata":{"publisher_id":2,"kv_state_endpoint":{"namespace":"dynamo","component":"backend","name":"generate"}}}`},
	} {
		if _, err := decodeOrigin([]byte(c.record), endpoint); err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: error %v, want one that names %s", name, err, c.field)
		}
	}
}

func TestEndpointsAndTheirSubjects(t *testing.T) {
	for text, subject := range map[string]string{
		"dynamo.backend.generate":       "namespace.dynamo.component.backend.endpoint.generate.kv-events",
		"dyn://ns.one.worker/*.gen_1-x": "namespace.ns%2Eone.component.worker%2F%2A.endpoint.gen_1-x.kv-events",
	} {
		e, err := ParseEndpoint(text)
		if err != nil || e.Subject(topic) != subject || e.String() != strings.TrimPrefix(text, "dyn://") {
			t.Errorf("%s: %v, subject %s, error %v", text, e, e.Subject(topic), err)
		}
	}
	for _, text := range []string{"", "a.b", "a..c", "a.b.", ".b.c"} {
		if e, err := ParseEndpoint(text); err == nil {
			t.Errorf("%q was taken for %+v", text, e)
		}
	}
}
