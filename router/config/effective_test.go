package config

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// TestShouldSubscribeToKVEvents: events are listened to when they are wanted and
// what is cached counts.
func TestShouldSubscribeToKVEvents(t *testing.T) {
	for document, want := range map[string]bool{
		`{}`:                          true,
		`{"use_kv_events":false}`:     false,
		`{"overlap_score_credit":0}`:  false,
		`{"overlap_score_weight":0}`:  false,
		`{"overlap_score_weight":2}`:  true,
		`{"prefill_load_scale":0}`:    true,
		`{"use_remote_indexer":true}`: false,
		`{"load_aware":true}`:         false,
	} {
		if c := read(t, document); c.ShouldSubscribeToKVEvents() != want {
			t.Errorf("%s: %v", document, !want)
		}
	}
}

// chain has the hashes of tokens 1 to 12 in blocks of 4, as Dynamo computes them.
var chain = []kv.SequenceHash{14643705804678351452, 4945711292740353085, 12583592247330656132}

func tokens(n uint32) []uint32 {
	var list []uint32
	for i := range n {
		list = append(list, i+1)
	}
	return list
}

// TestSequenceHashesForTracking: none when active blocks are not tracked, none of
// less than a block, the real chain where reuse is assumed and random numbers
// where it is not; the override decides before the config.
func TestSequenceHashesForTracking(t *testing.T) {
	reuse, none := true, false
	for name, tc := range map[string]struct {
		document string
		tokens   uint32
		override *Override
		tracked  bool
		real     []kv.SequenceHash
		random   int
	}{
		"not tracked":             {`{"router_track_active_blocks":false}`, 12, nil, false, nil, 0},
		"not tracked by override": {`{"router_track_active_blocks":false}`, 12, &Override{AssumeKVReuse: &reuse}, false, nil, 0},
		"real":                    {`{}`, 12, nil, true, chain, 0},
		"tail left out":           {`{}`, 11, nil, true, chain[:2], 0},
		"less than a block":       {`{}`, 3, nil, true, nil, 0},
		"random":                  {`{"router_assume_kv_reuse":false}`, 11, nil, true, nil, 2},
		"random, less":            {`{"router_assume_kv_reuse":false}`, 3, nil, true, nil, 0},
		"override on":             {`{"router_assume_kv_reuse":false}`, 12, &Override{AssumeKVReuse: &reuse}, true, chain, 0},
		"override off":            {`{}`, 12, &Override{AssumeKVReuse: &none}, true, nil, 3},
		"override silent":         {`{}`, 12, &Override{}, true, chain, 0},
	} {
		c := read(t, tc.document)
		var hasher kv.Hasher
		given := hasher.AppendLocals(nil, tokens(tc.tokens), 4, kv.LocalSeed("", ""))
		for _, locals := range [][]kv.LocalHash{nil, given} {
			got, tracked := c.SequenceHashesForTracking(tokens(tc.tokens), 4, tc.override, "", "", locals)
			if tracked != tc.tracked {
				t.Errorf("%s: tracked %v", name, tracked)
			}
			if tc.random == 0 {
				if !slices.Equal(got, tc.real) {
					t.Errorf("%s: %v, want %v", name, got, tc.real)
				}
				continue
			}
			again, _ := c.SequenceHashesForTracking(tokens(tc.tokens), 4, tc.override, "", "", locals)
			if len(got) != tc.random || len(again) != tc.random {
				t.Fatalf("%s: %d and %d hashes, want %d", name, len(got), len(again), tc.random)
			}
			for _, h := range got {
				if slices.Contains(again, h) || slices.Contains(chain, h) {
					t.Errorf("%s: %d is not random", name, h)
				}
			}
		}
	}
}

// TestSequenceHashesOfAdaptersAndTenants: adapter and salt separate the same
// tokens, and hashes that the caller has are taken as they are.
func TestSequenceHashesOfAdaptersAndTenants(t *testing.T) {
	c := Default()
	for _, tc := range []struct {
		lora, salt string
		want       kv.SequenceHash
	}{
		{"", "", 14643705804678351452},
		{"my-adapter", "", 15633847640104431966},
		{"", "tenant-id-1", 2198317793150278413},
		{"my-adapter", "tenant-id-1", 16689287337216723066},
	} {
		got, tracked := c.SequenceHashesForTracking(tokens(4), 4, nil, tc.lora, tc.salt, nil)
		if !tracked || len(got) != 1 || got[0] != tc.want {
			t.Errorf("%q %q: %v", tc.lora, tc.salt, got)
		}
	}
	locals := []kv.LocalHash{5, 6}
	got, _ := c.SequenceHashesForTracking(tokens(99), 4, nil, "", "", locals)
	if want := kv.AppendSequence(nil, locals); !slices.Equal(got, want) {
		t.Errorf("%v, want those of the hashes given, %v", got, want)
	}
	for _, assume := range []bool{true, false} {
		c.RouterAssumeKVReuse = assume
		if got, tracked := c.SequenceHashesForTracking(tokens(99), 0, nil, "", "", nil); len(got) != 0 || !tracked {
			t.Errorf("without a block size: %v, %v", got, tracked)
		}
	}
}

func TestTrackPrefillTokens(t *testing.T) {
	yes, no := true, false
	on, off := Default(), read(t, `{"router_track_prefill_tokens":false}`)
	if !on.TrackPrefillTokens(nil) || off.TrackPrefillTokens(&Override{}) || on.TrackPrefillTokens(&Override{TrackPrefillTokens: &no}) || !off.TrackPrefillTokens(&Override{TrackPrefillTokens: &yes}) {
		t.Error("the override, or else the config, does not decide")
	}
}

func TestInitialWorkers(t *testing.T) {
	c := read(t, `{"router_min_initial_workers":3}`)
	if c.InitialWorkers() != 3 {
		t.Errorf("%d workers", c.InitialWorkers())
	}
	if c.SkipInitialWorkerWait = true; c.InitialWorkers() != 0 {
		t.Error("the wait is not skipped")
	}
}

func TestTimesOfSettings(t *testing.T) {
	c := read(t, `{"router_ttl_secs":0.25,"router_active_request_expiry_secs":1e9,"router_overlap_refresh_after_secs":0,"router_predicted_ttl_secs":1.5}`)
	predicted, ok := c.PredictedTTL()
	if c.TTL() != 250*time.Millisecond || c.RequestExpiry() != 1e9*time.Second || c.OverlapRefreshAfter() != 0 || !ok || predicted != 1500*time.Millisecond {
		t.Errorf("got %v, %v, %v, %v", c.TTL(), c.RequestExpiry(), c.OverlapRefreshAfter(), predicted)
	}
	c = Default()
	if _, ok := c.PredictedTTL(); ok || c.TTL() != 2*time.Minute || c.RequestExpiry() != 5*time.Minute || c.OverlapRefreshAfter() != 10*time.Second {
		t.Error("the defaults are others")
	}
	if events, ok := c.SnapshotEvents(); !ok || events != 1_000_000 {
		t.Errorf("a snapshot each %d events, %v", events, ok)
	}
	c.RouterSnapshotEvents = nil
	if _, ok := c.SnapshotEvents(); ok {
		t.Error("there are snapshots")
	}
	if c.ActiveRequestExpirySecs = 1e-12; c.RequestExpiry() <= 0 {
		t.Error("an expiry above 0 became 0, which stands for the default")
	}
}

// TestOptionsOfOtherPackages: each setting reaches the option that it is about.
func TestOptionsOfOtherPackages(t *testing.T) {
	c := read(t, `{"overlap_score_credit":0.5,"overlap_score_credit_decay":0.125,"prefill_load_scale":3,"decode_active_request_weight":32,
		"host_cache_hit_weight":0.6,"disk_cache_hit_weight":0.1,"external_cache_hit_weight":0.05,"shared_cache_multiplier":0.4,
		"cost_formula":"overlap_weight","score":"cost","worker_type":"decode","router_temperature":0.7,"seed":9,"first_of_equal":true,
		"router_queue_threshold":4,"active_decode_blocks_threshold":0.9,"active_prefill_tokens_threshold":1000,"active_prefill_tokens_threshold_frac":1.5,
		"index_memory_bytes":1048576,"index_reading":"union","router_ttl_secs":7,"router_predicted_ttl_secs":2,"router_max_tree_size":99,
		"router_prune_target_ratio":0.25,"router_active_request_expiry_secs":60,"router_max_active_requests":77}`)
	got := c.Schedule()
	external := got.ExternalWeight
	got.ExternalWeight = nil
	want := schedule.Config{
		Formula: schedule.FormulaOverlapWeight, OverlapCredit: 0.5, CreditDecay: 0.125, PrefillLoadScale: 3, OverlapWeight: 3,
		ActiveRequestWeight: 32, HostWeight: 0.6, DiskWeight: 0.1, SharedMultiplier: 0.4, DecodeWorkers: true,
		Temperature: 0.7, Seed: 9, Tie: schedule.TieFirst, Price: true,
	}
	if got != want || external == nil || *external != 0.05 {
		t.Errorf("schedule %+v, external %v", got, external)
	}
	if q := c.Queue(nil); q.Threshold == nil || *q.Threshold != 4 || q.Validate() != nil {
		t.Errorf("queue %+v", q)
	}
	if b := c.Busy(); *b.DecodeBlocks != 0.9 || *b.PrefillTokens != 1000 || *b.PrefillFraction != 1.5 || b.Validate() != nil {
		t.Errorf("busy %+v", b)
	}
	if l := c.Load(); l.Expiry != time.Minute || l.MaxRequests != 77 || c.Index().MaxBytes != 3<<18 || c.Reading() != index.Union {
		t.Error("load, index or reading are wrong")
	}
	approx := c.Approx()
	predicted, ok := c.Predicted()
	if approx.TTL != 7*time.Second || approx.MaxBlocks != 99 || approx.PruneRatio != 0.25 || !ok || predicted.TTL != 2*time.Second || predicted.MaxBlocks != 99 || predicted.Index.MaxBytes != 1<<18 {
		t.Errorf("approximations %+v, %+v", approx, predicted)
	}
	c = Default()
	want = schedule.DefaultConfig()
	want.DecodeWorkers = true
	if got := c.Schedule(); got != want {
		t.Errorf("default %+v, want %+v", got, want)
	}
	if _, ok := c.Predicted(); ok || c.Reading() != index.Continuation || c.Queue(nil).Threshold != nil || c.Busy() != (schedule.BusyThresholds{}) {
		t.Error("what is off by default is on")
	}
}

// The conditional settings count only when they are on, each with its policy.
func TestDisaggregation(t *testing.T) {
	two, four := 2.0, 4.0
	for document, want := range map[string]Disaggregation{
		`{}`: {MinTokens: 256, Timeout: 30 * time.Second, Wait: time.Second},
		`{"prefill_min_tokens":0,"prefill_timeout_secs":0.5,"hand_over_wait_secs":0.0014}`: {Timeout: 500 * time.Millisecond, Wait: time.Millisecond},
		`{"conditional_disagg_enabled":true}`: {
			MinTokens: 256, Timeout: 30 * time.Second, Wait: time.Second, Conditional: true, Bounds: true, Tokens: 2048, Ratio: 0.7},
		`{"conditional_disagg_enabled":true,"conditional_disagg_policy":"prefill_load","router_queue_threshold":2}`: {
			MinTokens: 256, Timeout: 30 * time.Second, Wait: time.Second, Conditional: true, Tokens: 2048, Ratio: 0.7, PrefillBusy: &two},
		`{"conditional_disagg_enabled":true,"conditional_disagg_policy":"isl_or_load","router_queue_threshold":2,
		  "conditional_disagg_prefill_busy_threshold":4,"conditional_disagg_decode_busy_threshold":2}`: {
			MinTokens: 256, Timeout: 30 * time.Second, Wait: time.Second, Conditional: true, Bounds: true, Tokens: 2048, Ratio: 0.7, PrefillBusy: &four, DecodeBusy: &two},
	} {
		c := read(t, document)
		if diff := cmp.Diff(want, c.Disaggregation()); diff != "" {
			t.Errorf("%s: %s", document, diff)
		}
	}
}
