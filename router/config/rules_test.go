package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// isNotYet reports whether err holds a NotYetError.
func isNotYet(err error) bool {
	var later *NotYetError
	return errors.As(err, &later)
}

// read reads a document that has to be good.
func read(t *testing.T, document string) Config {
	t.Helper()
	c, err := parseJSON([]byte(document))
	if err != nil {
		t.Fatalf("%s: %v", document, err)
	}
	return c
}

// TestSettingsThatDoNotGoTogether: each rule names the setting to change and what
// it needs; what it needs makes it valid or, of what is not there yet, known.
func TestSettingsThatDoNotGoTogether(t *testing.T) {
	for _, tc := range []struct{ bad, field, needs, good string }{
		{`"durable_kv_events":true,"use_kv_events":false`, "durable_kv_events", "use_kv_events", `"durable_kv_events":true`},
		{`"router_track_output_blocks":true,"router_track_active_blocks":false`, "router_track_output_blocks", "router_track_active_blocks", `"router_track_output_blocks":true`},
		{`"router_prefill_load_model":"aic","router_track_prefill_tokens":false`, "router_prefill_load_model", "router_track_prefill_tokens", `"router_prefill_load_model":"aic"`},
		{`"router_predicted_ttl_secs":2,"use_kv_events":false`, "router_predicted_ttl_secs", "use_kv_events", `"router_predicted_ttl_secs":2`},
		{`"shared_cache_type":"http"`, "shared_cache_type", "shared_cache_url", `"shared_cache_type":"http","shared_cache_url":"http://h:1"`},
		{`"shared_cache_url":"http://h:1"`, "shared_cache_url", "shared_cache_type http", `"shared_cache_type":"http","shared_cache_url":"http://h:1"`},
		{`"serve_indexer":true,"use_remote_indexer":true`, "serve_indexer", "use_remote_indexer off", `"serve_indexer":true`},
		{`"serve_indexer":true,"use_kv_events":false`, "serve_indexer", "use_kv_events", `"use_remote_indexer":true,"use_kv_events":false`},
		{`"serve_indexer":true,"overlap_score_credit":0`, "serve_indexer", "overlap_score_credit", ""},
		{`"serve_indexer":true,"overlap_score_weight":0`, "serve_indexer", "overlap_score_credit", ""},
		{`"router_tracking_hash":"keyed-xxh3-v1","router_tracking_key_id":"k"`, "router_tracking_hash", "router_tracking_key_file and router_tracking_key_id", ""},
		{`"conditional_disagg_enabled":true,"conditional_disagg_policy":"prefill_load"`, "conditional_disagg_policy", "conditional_disagg_prefill_busy_threshold or router_queue_threshold", `"conditional_disagg_enabled":true,"conditional_disagg_policy":"prefill_load","router_queue_threshold":1`},
		{`"conditional_disagg_config":"{}"`, "conditional_disagg_config", "conditional_disagg_enabled", `"conditional_disagg_config":"{}","conditional_disagg_enabled":true`},
		{`"conditional_disagg_config":"{\"eff_isl_threshold\":1}","conditional_disagg_enabled":true`, "conditional_disagg_config", "the values that Resolve sets with it", `"conditional_disagg_config":"{\"eff_isl_threshold\":1}","conditional_disagg_enabled":true,"conditional_disagg_eff_isl_threshold":1`},
	} {
		c := read(t, "{"+tc.bad+"}")
		if _, err := c.Validate(); err == nil || isNotYet(err) || !strings.HasPrefix(err.Error(), tc.field+" (--") || !strings.Contains(err.Error(), ": needs ") || !strings.Contains(err.Error(), tc.needs) {
			t.Errorf("%s: error %v, want one of %s that needs %s", tc.bad, err, tc.field, tc.needs)
		}
		if tc.good == "" {
			continue
		}
		c = read(t, "{"+tc.good+"}")
		if _, err := c.Validate(); err != nil {
			t.Errorf("%s: %v", tc.good, err)
		}
	}
}

// TestWhatIsNotThereYetIsAnError: every value of Dynamo's that nothing here stands
// behind is refused by name, and what works in its place is said.
func TestWhatIsNotThereYetIsAnError(t *testing.T) {
	for want, document := range map[string]string{
		`router_mode "device-aware-weighted" want kv or round-robin or random or power-of-two or least-loaded or direct`: `{"router_mode":"device-aware-weighted"}`,
		`shared_cache_type "hicache" want none or http`:                                                                  `{"shared_cache_type":"hicache"}`,
		`router_prefill_policy "mine" want none or default`:                                                              `{"router_prefill_policy":"mine"}`,
		`router_decode_policy "mine" want none or default`:                                                               `{"router_decode_policy":"mine"}`,
		`router_worker_selection_policy "mine" want none or default`:                                                     `{"router_worker_selection_policy":"mine"}`,
		`router_tracking_key_file "f" want none`:                                                                         `{"router_tracking_key_file":"f"}`,
		`router_tracking_key_id "k" want none`:                                                                           `{"router_tracking_key_id":"k"}`,
		`router_tracking_hash "keyed-xxh3-v1" want public-xxh3-v1`:                                                       `{"router_tracking_hash":"keyed-xxh3-v1","router_tracking_key_file":"f","router_tracking_key_id":"k"}`,
	} {
		c := read(t, document)
		_, err := c.Validate()
		var later *NotYetError
		if !errors.As(err, &later) {
			t.Errorf("%s: error %v", document, err)
			continue
		}
		field, _, _ := strings.Cut(later.Field, " ")
		if got := fmt.Sprintf("%s %q want %s", field, later.Value, later.Want); got != strings.TrimSpace(want) {
			t.Errorf("%s: %s, want %s", document, got, want)
		}
	}
	for _, document := range []string{`{"router_prefill_policy":"default","router_decode_policy":"default"}`, `{"use_remote_indexer":true}`, `{"router_policy_config":null}`} {
		c := read(t, document)
		if _, err := c.Validate(); err != nil {
			t.Errorf("%s: %v", document, err)
		}
	}
}

// TestEveryLaterValueIsRefused: nothing in the table's third column gets through.
func TestEveryLaterValueIsRefused(t *testing.T) {
	for _, s := range Settings() {
		for _, value := range s.domain.unsupported {
			if value == anyValue {
				value = "1"
			}
			c := Default()
			p := s.at(&c)
			if !s.domain.setValue(p, value) || s.domain.notYet(s.Name, p) == nil {
				t.Errorf("%s %s gets through", s.Name, value)
			}
		}
	}
}

// TestNotices: what is deprecated, or idle in its company, is said; defaults and
// settings at work are not.
func TestNotices(t *testing.T) {
	for document, want := range map[string][]string{
		`{}`: nil,
		`{"router_ttl_secs":120,"router_event_threads":4,"router_snapshot_threshold":1000000}`:                       nil,
		`{"use_kv_events":false,"router_ttl_secs":5,"router_max_tree_size":9}`:                                       nil,
		`{"durable_kv_events":true,"router_snapshot_threshold":null}`:                                                {"durable_kv_events is deprecated: Dynamo has removed it, Blockyard still supports it"},
		`{"overlap_score_weight":2.5}`:                                                                               {"overlap_score_weight is deprecated: it sets prefill_load_scale to 2.5"},
		`{"overlap_score_weight":0}`:                                                                                 {"overlap_score_weight is deprecated: it sets prefill_load_scale to 0, and overlap_score_credit to 0"},
		`{"router_ttl_secs":5,"router_prune_target_ratio":0.5,"router_max_tree_size":9}`:                             nil, // for workers without events
		`{"router_predicted_ttl_secs":3,"router_prune_target_ratio":0.5,"router_max_tree_size":9}`:                   nil,
		`{"router_mode":"round-robin","score":"cost","router_temperature":1}`:                                        {"score price has no effect: router_mode is round-robin", "router_temperature 1 has no effect: router_mode is round-robin"},
		`{"router_mode":"random","seed":3,"first_of_equal":true}`:                                                    {"first_of_equal true has no effect: router_mode is random"},
		`{"router_mode":"least-loaded","seed":3,"first_of_equal":true}`:                                              {"seed 3 has no effect: first_of_equal draws nothing"},
		`{"router_mode":"least-loaded","first_of_equal":true}`:                                                       nil,
		`{"router_mode":"power-of-two","seed":3}`:                                                                    nil,
		`{"router_mode":"direct","seed":3,"overlap_score_credit_decay":2}`:                                           {"overlap_score_credit_decay 2 has no effect: router_mode is direct", "seed 3 has no effect: router_mode is direct"},
		`{"cost_formula":"overlap_weight","decode_active_request_weight":2}`:                                         {"decode_active_request_weight 2 has no effect: cost_formula is overlap_weight"},
		`{"cost_formula":"overlap_weight","overlap_score_credit_decay":2}`:                                           {"overlap_score_credit_decay 2 has no effect: cost_formula is overlap_weight"},
		`{"score_weights":"tuned"}`:                                                                                  nil,
		`{"score_weights":"tuned","prefill_load_scale":1,"host_cache_hit_weight":0.75,"disk_cache_hit_weight":0.25}`: {"score_weights tuned has no effect: prefill_load_scale, host_cache_hit_weight and disk_cache_hit_weight have Dynamo's defaults"},
		`{"score_weights":"tuned","cost_formula":"overlap_weight"}`:                                                  {"score_weights tuned has no effect: cost_formula is overlap_weight"},
		`{"first_of_equal":true,"seed":3}`:                                                                           {"seed 3 has no effect: first_of_equal draws nothing"},
		`{"first_of_equal":true,"seed":3,"router_temperature":1}`:                                                    {"first_of_equal true has no effect: router_temperature draws among all"},
		`{"router_track_active_blocks":false,"router_assume_kv_reuse":false}`:                                        {"router_assume_kv_reuse false has no effect: router_track_active_blocks is off"},
		`{"router_track_prefill_tokens":false,"router_queue_threshold":2}`:                                           {"router_queue_threshold 2 has no effect: router_track_prefill_tokens is off, which only a request may change"},
		`{"router_track_prefill_tokens":false,"overlap_score_credit_decay":2}`:                                       {"overlap_score_credit_decay 2 has no effect: router_track_prefill_tokens is off, which only a request may change"},
		`{"router_overlap_refresh_after_secs":3}`:                                                                    {"router_overlap_refresh_after_secs 3 has no effect: router_queue_threshold is not set"},
		`{"router_overlap_refresh_after_secs":3,"router_queue_threshold":2}`:                                         nil,
		`{"shared_cache_multiplier":0.25}`:                                                                           {"shared_cache_multiplier 0.25 has no effect: shared_cache_type is none"},
		`{"shared_cache_multiplier":0.5}`:                                                                            nil,
		`{"skip_initial_worker_wait":true,"router_min_initial_workers":3}`:                                           {"router_min_initial_workers 3 has no effect: skip_initial_worker_wait is on"},
		`{"skip_initial_worker_wait":true}`:                                                                          {"skip_initial_worker_wait true has no effect: router_min_initial_workers is 0"},
		`{"overlap_score_credit":0,"router_predicted_ttl_secs":3}`:                                                   {"router_predicted_ttl_secs 3 has no effect: overlap_score_credit is 0"},
		`{"overlap_score_credit":0,"use_kv_events":false,"router_ttl_secs":3}`:                                       {"router_ttl_secs 3 has no effect: overlap_score_credit is 0"},
		`{"overlap_score_credit":0,"durable_kv_events":true,"router_snapshot_threshold":3}`:                          {"durable_kv_events true has no effect: overlap_score_credit is 0", "router_snapshot_threshold 3 has no effect: overlap_score_credit is 0"},
		`{"router_snapshot_threshold":7}`:                                                                            {"router_snapshot_threshold 7 has no effect: durable_kv_events is off"},
		`{"router_event_threads":1,"router_positional_search_mode":"binary"}`:                                        {"router_event_threads 1 has no effect: one writer keeps up, and readers do not wait for it", "router_positional_search_mode binary has no effect: there is one index, and its answers are exact"},
		`{"conditional_disagg_policy":"isl_or_load","conditional_disagg_eff_isl_threshold":1}`:                       {"conditional_disagg_policy isl_or_load has no effect: conditional_disagg_enabled is off", "conditional_disagg_eff_isl_threshold 1 has no effect: conditional_disagg_enabled is off"},
		`{"conditional_disagg_enabled":true,"conditional_disagg_prefill_busy_threshold":1}`:                          {"conditional_disagg_prefill_busy_threshold 1 has no effect: conditional_disagg_policy is isl_bounding"},
		`{"conditional_disagg_enabled":true,"conditional_disagg_policy":"prefill_load","conditional_disagg_prefill_busy_threshold":1,"conditional_disagg_eff_isl_threshold":1}`: {"conditional_disagg_eff_isl_threshold 1 has no effect: conditional_disagg_policy is prefill_load"},
	} {
		c := read(t, document)
		notices, err := c.Validate()
		var got []string
		for _, n := range notices {
			got = append(got, n.String())
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", document, got, err, want)
		}
	}
}

// TestLoadAwareByHandIsNoSetting: it stands for others, which a program that fills in a
// Config has to fill in too.
func TestLoadAwareByHandIsNoSetting(t *testing.T) {
	c := Default()
	c.LoadAware = true
	if _, err := c.Validate(); err == nil || !strings.Contains(err.Error(), `load_aware (--load-aware) "true": needs`) {
		t.Errorf("error %v", err)
	}
	c = read(t, `{"load_aware":true}`)
	if _, err := c.Validate(); err != nil {
		t.Errorf("from a document: %v", err)
	}
}
