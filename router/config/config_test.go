package config

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// limits are written out here, so that the table is checked and not repeated: the
// default of a setting, values that it takes and values that it does not, as flags
// have them.
var limits = []struct{ name, def, good, bad string }{
	{"overlap_score_credit", "1", "0 0.5 1.5 1e6 1000000", "-1 -1e-9 1000000.1 NaN inf 0x1p2 1_0 x"},
	{"overlap_score_credit_decay", "0", "0 1000000", "-1 1000001 nan"},
	{"prefill_load_scale", "1", "0 1000000", "-1 1000001 nan"},
	{"decode_active_request_weight", "0", "0 64 1000000", "-1 1000001 +Inf"},
	{"host_cache_hit_weight", "0.75", "0 1", "-0.1 1.1 NaN"},
	{"disk_cache_hit_weight", "0.25", "0 1", "-0.1 1.1 NaN"},
	{"external_cache_hit_weight", "none", "0 1 none", "-0.1 1.1 NaN"},
	{"shared_cache_multiplier", "0", "0 1", "-0.1 1.1 NaN"},
	{"overlap_score_weight", "none", "0 1000000 None", "-1 1000001 NaN"},
	{"cost_formula", "credit", "credit overlap_weight", "Credit overlap x"},
	{"score_weights", "dynamo", "dynamo tuned", "best"},
	{"score", "weights", "weights price cost", "latency"},
	{"objective", "balanced", "balanced ttft throughput", "latency"},
	{"worker_type", "decode", "decode prefill", "both"},
	{"load_aware", "false", "true false on OFF Yes no 1 0", "maybe 2"},
	{"router_mode", "kv", "kv round-robin round_robin random power-of-two direct least-loaded device-aware-weighted", "KV fastest"},
	{"router_temperature", "0", "0 1000000", "-1 1000001 NaN"},
	{"first_of_equal", "false", "true", "x"},
	{"seed", "0", "0 18446744073709551615", "-1 18446744073709551616 1.5"},
	{"use_kv_events", "true", "false", "x"},
	{"durable_kv_events", "false", "true", "x"},
	{"router_snapshot_threshold", "1000000", "1 4294967295 none 0", "-1 4294967296 1.5"},
	{"router_reset_states", "false", "true", "x"},
	{"router_ttl_secs", "120", "0 0.1 1e9", "-1 1000000001 NaN"},
	{"router_max_tree_size", "1048576", "1 4294967294", "0 4294967295 none"},
	{"router_prune_target_ratio", "0.8", "0 1", "-0.1 1.1 NaN"},
	{"router_predicted_ttl_secs", "none", "0 1e9 none", "-1 1000000001 NaN"},
	{"router_event_threads", "4", "1 4294967295", "0 -1 4294967296"},
	{"router_positional_search_mode", "strided", "strided binary", "linear"},
	{"index_reading", "continuation", "continuation union", "tiers"},
	{"miss_memory_blocks", "1048576", "0 1 268435456", "-1 268435457 1.5 none"},
	{"index_memory_bytes", "8589934592", "1048576 1MiB 1.5GiB 64Gi 1GB 64TiB 70368744177664", "1048575 70368744177665 65TiB 1000KiB 1e9 GiB 18446744073709551615TiB"},
	{"kv_cache_block_size", "none", "1 65536 none", "0 65537"},
	{"shared_cache_type", "none", "none http hicache", "redis"},
	{"shared_cache_url", "none", "http://host:1/x https://host none", "host:1 ftp://host http://"},
	{"use_remote_indexer", "false", "true", "x"},
	{"serve_indexer", "false", "true", "x"},
	{"router_track_active_blocks", "true", "false", "x"},
	{"router_track_output_blocks", "false", "true", "x"},
	{"router_assume_kv_reuse", "true", "false", "x"},
	{"router_track_prefill_tokens", "true", "false", "x"},
	{"router_prefill_load_model", "none", "none aic", "linear"},
	{"router_active_request_expiry_secs", "300", "0.001 1e9", "0 -1 1000000001 NaN"},
	{"router_max_active_requests", "1048576", "1 67108864", "0 67108865 none"},
	{"router_replica_sync", "false", "true", "x"},
	{"router_queue_threshold", "none", "0.0001 4 1000000 none", "0 -1 1000001 NaN"},
	{"router_queue_policy", "fcfs", "fcfs wspt lcfs edf", "fifo"},
	{"router_queue_max_wait_secs", "0", "5 1e9", "-1 1000000001 NaN"},
	{"router_overlap_refresh_after_secs", "10", "0 1e9", "-1 1000000001 NaN"},
	{"active_decode_blocks_threshold", "none", "0 1 none", "-0.1 1.1 NaN"},
	{"active_prefill_tokens_threshold", "none", "0 9223372036854775807 none", "-1 1.5 9223372036854775808"},
	{"active_prefill_tokens_threshold_frac", "none", "0 1000000 none", "-0.1 1000001 NaN"},
	{"router_policy_config", "none", "classes.yaml none", strings.Repeat("x", 4097)},
	{"router_min_initial_workers", "0", "0 2147483647", "-1 2147483648 two"},
	{"skip_initial_worker_wait", "false", "true", "x"},
	{"is_eagle", "false", "true", "x"},
	{"http_host", "none", "0.0.0.0 :: fe80::1 localhost node-7.example none", "host:80 [::] a/b " + strings.Repeat("x", 254)},
	{"http_port", "none", "0 65535 none", "-1 65536"},
	{"http_overload_status", "529", "503 400 599", "399 600 200 none"},
	{"router_tracking_hash", "public-xxh3-v1", "public-xxh3-v1 keyed-xxh3-v1", "sha256"},
	{"router_tracking_key_file", "none", "key none", strings.Repeat("x", 4097)},
	{"router_tracking_key_id", "none", "2026-01 none", strings.Repeat("x", 4097)},
	{"router_session_affinity_ttl_secs", "none", "1 31536000 none", "0 31536001"},
	{"router_prefill_policy", "none", "default mine none", strings.Repeat("x", 4097)},
	{"router_decode_policy", "none", "default mine none", strings.Repeat("x", 4097)},
	{"router_worker_selection_policy", "none", "default mine none", strings.Repeat("x", 4097)},
	{"prefill_min_tokens", "256", "0 9223372036854775807", "-1 9223372036854775808"},
	{"prefill_timeout_secs", "30", "0.1 1e9", "0 -1 1000000001 NaN"},
	{"hand_over_wait_secs", "1", "0.001 60", "0 60.1 NaN"},
	{"conditional_disagg_enabled", "false", "true", "x"},
	{"conditional_disagg_config", "none", "{} none", strings.Repeat("x", 4097)},
	{"conditional_disagg_policy", "isl_bounding", "isl_bounding prefill_load isl_or_load", "always"},
	{"conditional_disagg_eff_isl_threshold", "2048", "0 9223372036854775807", "-1 9223372036854775808"},
	{"conditional_disagg_eff_isl_ratio_threshold", "0.7", "0 1", "-0.1 1.1 NaN"},
	{"conditional_disagg_prefill_busy_threshold", "none", "0 1000000 none", "-1 1000001 NaN"},
	{"conditional_disagg_decode_busy_threshold", "none", "0 1000000 none", "-1 1000001 NaN"},
}

func TestDefaultsAndLimitsOfEachSetting(t *testing.T) {
	settings := Settings()
	if len(settings) != len(limits) {
		t.Errorf("%d settings, %d with limits in this test", len(settings), len(limits))
	}
	for _, l := range limits {
		s := find(settings, l.name)
		if s == nil {
			t.Errorf("%s is not in the table", l.name)
			continue
		}
		if s.Default() != l.def {
			t.Errorf("%s: default %s, want %s", l.name, s.Default(), l.def)
		}
		for _, value := range strings.Fields(l.good) {
			c := Default()
			if !s.domain.set(s.at(&c), value) || !s.domain.check(s.at(&c)) {
				t.Errorf("%s does not take %s", l.name, value)
			}
		}
		for _, value := range strings.Fields(l.bad) {
			c := Default()
			if s.domain.set(s.at(&c), value) || !cmp.Equal(c, Default()) {
				t.Errorf("%s takes %.64s", l.name, value)
			}
		}
	}
}

func TestDefaultIsValidAndSaysNothing(t *testing.T) {
	for name, c := range map[string]Config{"library": Default(), "command": CommandDefault()} {
		if notices, err := c.Validate(); err != nil || len(notices) != 0 {
			t.Errorf("%s: notices %v, error %v", name, notices, err)
		}
	}
	if c := CommandDefault(); c.SharedCacheMultiplier != 0.5 {
		t.Errorf("shared cache multiplier %v on the command line, want 0.5", c.SharedCacheMultiplier)
	}
	c := Default()
	if schedule := c.Schedule(); schedule.Validate() != nil {
		t.Errorf("schedule %+v: %v", schedule, schedule.Validate())
	}
}

// TestTableHasEveryFieldOnce: the table and the struct name the same fields, each
// setting has its own, and no name belongs to two settings.
func TestTableHasEveryFieldOnce(t *testing.T) {
	var c Config
	fields := reflect.TypeOf(c)
	places := make(map[any]string)
	for i := range fields.NumField() {
		places[reflect.ValueOf(&c).Elem().Field(i).Addr().Interface()] = fields.Field(i).Tag.Get("json")
	}
	names := make(map[string]string)
	for _, s := range Settings() {
		if places[s.at(&c)] != s.Name {
			t.Errorf("%s is the field %q", s.Name, places[s.at(&c)])
		}
		delete(places, s.at(&c))
		for _, name := range slices.Concat([]string{s.Name}, s.Flags, s.Env) {
			if other := names[name]; other != "" && other != s.Name {
				t.Errorf("%s belongs to %s and %s", name, other, s.Name)
			}
			names[name] = s.Name
		}
		if len(s.Flags) == 0 || len(s.Env) == 0 || s.Since == "" || !strings.HasSuffix(s.Meaning, ".") || strings.Contains(s.Meaning, "|") {
			t.Errorf("%s: flags %q, variables %q, since %q, meaning %q", s.Name, s.Flags, s.Env, s.Since, s.Meaning)
		}
		if s.Group == GroupLater && s.Later() == "" {
			t.Errorf("%s is in the group %s", s.Name, s.Group)
		}
	}
	for _, name := range places {
		t.Errorf("%s is not in the table", name)
	}
}

// TestValidateNamesFieldValueAndRange: a Config that was not parsed is held to the
// same limits.
func TestValidateNamesFieldValueAndRange(t *testing.T) {
	for _, s := range Settings() {
		for _, bad := range []float64{math.NaN(), math.Inf(1), -1} {
			c := Default()
			switch p := s.at(&c).(type) {
			case *float64:
				*p = bad
			case **float64:
				*p = &bad
			default:
				continue
			}
			_, err := c.Validate()
			if err == nil || !strings.Contains(err.Error(), s.Name) || !strings.Contains(err.Error(), strconv.FormatFloat(bad, 'g', -1, 64)) || !strings.Contains(err.Error(), s.Accepts()) {
				t.Errorf("%s of %v: %v", s.Name, bad, err)
			}
		}
	}
	for want, change := range map[string]func(*Config){
		`router_queue_policy (--router-queue-policy) "lifo": want fcfs or lcfs or wspt or edf`: func(c *Config) { c.RouterQueuePolicy = "lifo" },
		`router_event_threads (--router-event-threads) "0": want a whole number, 1 to 4294967295`: func(c *Config) {
			c.RouterEventThreads = 0
		},
		`index_memory_bytes (--index-memory) "1": want a size such as 8GiB, 1MiB to 64TiB`: func(c *Config) {
			c.IndexMemoryBytes = 1
		},
		`shared_cache_url (--shared-cache-url) "x": want an http or https URL, or none`: func(c *Config) {
			x := "x"
			c.SharedCacheURL = &x
		},
	} {
		c := Default()
		change(&c)
		if _, err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// TestConfigSurvivesJSON: what is written is what is read, for every setting.
func TestConfigSurvivesJSON(t *testing.T) {
	for _, l := range limits {
		for _, value := range strings.Fields(l.good) {
			c := Default()
			s := find(Settings(), l.name)
			s.domain.set(s.at(&c), value)
			data, err := json.Marshal(&c)
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseJSON(data)
			if c.LoadAware || c.OverlapScoreWeight != nil {
				continue // they change other fields
			}
			if err != nil || !cmp.Equal(got, c) {
				t.Errorf("%s %s: %v, %s", l.name, value, err, cmp.Diff(c, got))
			}
		}
	}
}
