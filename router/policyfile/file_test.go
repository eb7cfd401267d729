package policyfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

const sample = `
default_policy_family: standard
uncached_isl_buckets:
  - min_tokens: 0
    bucket: short
  - min_tokens: 4096
    bucket: long
policy_classes:
  - name: standard_short
    policy_family: standard
    cache_bucket: short
    quantum: 2048
    prefill_busy_threshold: 0
  - name: standard_long
    policy_family: standard
    cache_bucket: long
    queue_policy: wspt
    quantum: 512
    prefill_busy_threshold_frac: 0.5
    request_queue_limit_per_worker: 10
    raw_isl_token_queue_limit_per_worker: 20000
    cached_token_queue_limit_per_worker: 30000
  - name: agents
    queue_policy: edf
    deadline_ms: 1500
    quantum: 1
models:
  other/model:
    default_policy_family: all
    uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
    policy_classes: [{name: all, policy_family: all, cache_bucket: all, quantum: 1}]
`

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "classes.yaml")
	if err := os.WriteFile(path, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	none, half := int64(0), 0.5
	want := &queue.Profile{
		DefaultFamily: "standard",
		Buckets:       []queue.Bucket{{MinTokens: 0, Name: "short"}, {MinTokens: 4096, Name: "long"}},
		Classes: []queue.Class{
			{Name: "standard_short", Family: "standard", Bucket: "short", Quantum: 2048, ThresholdTokens: &none},
			{Name: "standard_long", Family: "standard", Bucket: "long", Discipline: queue.WSPT, Quantum: 512, Threshold: &half,
				Limits: queue.Limits{Requests: 10, Tokens: 20000, CachedTokens: 30000}},
			{Name: "agents", Discipline: queue.EDF, Deadline: 1500 * time.Millisecond, Quantum: 1},
		},
	}
	if diff := cmp.Diff(want, f.Profile("any/model")); diff != "" {
		t.Error(diff)
	}
	if p := f.Profile("other/model"); len(p.Classes) != 1 || p.Classes[0].Name != "all" {
		t.Errorf("%+v", p)
	}
}

// TestOnlyModels: a file may have profiles of models alone.
func TestOnlyModels(t *testing.T) {
	f, err := Parse([]byte(sample[strings.Index(sample, "models:"):]))
	if err != nil {
		t.Fatal(err)
	}
	if f.Profile("other/model") == nil || f.Profile("any/model") != nil {
		t.Error("the profiles are not those of the file")
	}
}

func TestErrorsNameTheField(t *testing.T) {
	replaced := func(old, to string) string { return strings.Replace(sample, old, to, 1) }
	for want, text := range map[string]string{
		"EOF":                                   "",
		"field quantums not found":              replaced("quantum: 2048", "quantums: 2048"),
		`queue_policy "sjf": want fcfs or lcfs`: replaced("wspt", "sjf"),
		"worker_selection: not yet":             sample + "worker_selection: {aggregated: x}\n",
		"queue_admission: not yet":              replaced("queue_policy: wspt", "queue_admission: {type: session_aware}"),
		`name "a b": want`:                      replaced("name: standard_short", "name: a b"),
		`"other/model": default_policy_family`:  replaced("default_policy_family: all", "default_policy_family: some"),
		`"standard_long" threshold: -0.5`:       replaced("frac: 0.5", "frac: -0.5"),
		`"standard_short" quantum: 0 is not`:    replaced("quantum: 2048", ""),
		"more than one document":                sample + "---\n{}\n",
		"already defined":                       sample + "models: {}\n",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
