package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Notice says that a setting is deprecated or has no effect.
type Notice struct {
	// Field is the name of the setting. Text is the rest of the sentence.
	Field, Text string
}

// String formats the notice for the log.
func (n Notice) String() string { return n.Field + " " + n.Text }

// Validate reports the first error: a value out of range, then a broken rule between
// settings, then a NotYetError. The notices name the settings that are deprecated or have no
// effect, in the order of the table. Log them once at the start.
func (c *Config) Validate() ([]Notice, error) {
	settings := Settings()
	for i := range settings {
		s := &settings[i]
		if p := s.at(c); !s.domain.check(p) {
			return nil, s.domain.invalid(s.label(), p, formatValue(p))
		}
	}
	if err := c.checkRules(settings); err != nil {
		return nil, err
	}
	for i := range settings {
		if err := settings[i].domain.notYet(settings[i].label(), settings[i].at(c)); err != nil {
			return nil, err
		}
	}
	return c.notices(settings), nil
}

// rule is a condition between settings.
type rule struct {
	broken bool
	// field is the setting that breaks the rule. needs is what it requires.
	field, needs string
}

// rules returns all rules between settings, each with whether c breaks it. A rule says which
// other setting a setting needs.
func (c *Config) rules() []rule {
	busy := cmp.Or(c.ConditionalDisaggPrefillBusyThreshold, c.RouterQueueThreshold) // nil without both
	return []rule{
		{c.DurableKVEvents && !c.UseKVEvents, "durable_kv_events", "use_kv_events"},
		{c.RouterTrackOutputBlocks && !c.RouterTrackActiveBlocks, "router_track_output_blocks", "router_track_active_blocks"},
		{c.RouterPrefillLoadModel == LoadModelAIC && !c.RouterTrackPrefillTokens, "router_prefill_load_model", "router_track_prefill_tokens"},
		{c.RouterPredictedTTLSecs != nil && !c.UseKVEvents, "router_predicted_ttl_secs", "use_kv_events"},
		{c.SharedCacheType == SharedHTTP && c.SharedCacheURL == nil, "shared_cache_type", "shared_cache_url"},
		{c.SharedCacheType != SharedHTTP && c.SharedCacheURL != nil, "shared_cache_url", "shared_cache_type http"},
		{c.ServeIndexer && c.UseRemoteIndexer, "serve_indexer", "use_remote_indexer off"},
		{c.ServeIndexer && !c.UseKVEvents, "serve_indexer", "use_kv_events"},
		{c.ServeIndexer && c.overlapCredit() == 0, "serve_indexer", "an overlap_score_credit above 0"},
		{c.RouterTrackingHash == trackingKeyed && (c.RouterTrackingKeyFile == nil || c.RouterTrackingKeyID == nil), "router_tracking_hash", "router_tracking_key_file and router_tracking_key_id"},
		{c.ConditionalDisaggEnabled && c.ConditionalDisaggPolicy != disaggBounding && busy == nil, "conditional_disagg_policy", "conditional_disagg_prefill_busy_threshold or router_queue_threshold"},
		{c.LoadAware && !c.matchesPreset(), "load_aware", "the values that Resolve sets with it"},
		{c.ConditionalDisaggConfig != nil && !c.ConditionalDisaggEnabled, "conditional_disagg_config", "conditional_disagg_enabled"},
		{!c.matchesDisaggObject(), "conditional_disagg_config", "the values that Resolve sets with it"},
	}
}

// checkRules returns an error for the first setting of c that needs another setting which c
// lacks. The error names both.
func (c *Config) checkRules(settings []Setting) error {
	for _, r := range c.rules() {
		if r.broken {
			s := find(settings, r.field)
			return fmt.Errorf("%s %.64q: needs %s", s.label(), s.Text(c), r.needs)
		}
	}
	return nil
}

// notices returns a notice for each setting of c that is deprecated, or that the operator has
// set without effect, in the order of settings.
func (c *Config) notices(settings []Setting) []Notice {
	var notices []Notice
	for i := range settings {
		s := &settings[i]
		switch why := s.whyNoEffect(c); {
		case why != "":
			notices = append(notices, Notice{s.Name, fmt.Sprintf("%s has no effect: %s", s.Text(c), why)})
		case s.Name == "overlap_score_weight" && c.OverlapScoreWeight != nil:
			notices = append(notices, Notice{s.Name, fmt.Sprintf("is deprecated: it sets prefill_load_scale to %v%s", *c.OverlapScoreWeight, c.alsoCredit())})
		case s.Name == "durable_kv_events" && c.DurableKVEvents:
			notices = append(notices, Notice{s.Name, "is deprecated: Dynamo has removed it, Blockyard still supports it"})
		}
	}
	return notices
}

// alsoCredit completes the notice of an overlap score weight of 0.
func (c *Config) alsoCredit() string {
	if *c.OverlapScoreWeight == 0 {
		return ", and overlap_score_credit to 0"
	}
	return ""
}

// notYet returns a NotYetError if the value that p points to is one of Dynamo's that
// Blockyard does not support yet. label names the setting in the error.
func (s *domain) notYet(label string, p any) error {
	value := formatValue(p)
	if slices.Contains(s.words, value) {
		return nil
	}
	if slices.Contains(s.unsupported, value) || value != "none" && slices.Contains(s.unsupported, anyValue) {
		return &NotYetError{Field: label, Value: value, Want: s.alternatives(p)}
	}
	return nil
}

// alternatives names the supported values of a setting that has unsupported ones, as the end
// of a sentence with "want". p points to the setting's field.
func (s *domain) alternatives(p any) string {
	switch p.(type) {
	case *bool:
		return "false"
	case *string:
		return strings.Join(s.words, " or ")
	}
	return strings.Join(append([]string{"none"}, s.words...), " or ")
}

// NotYetError says that Blockyard does not support a value of Dynamo yet.
type NotYetError struct {
	// Field names the setting. Value is its value. Want names the supported values.
	Field, Value, Want string
}

// Error names the field, the value and the supported values.
func (e *NotYetError) Error() string {
	return fmt.Sprintf("%s %.64q: not yet; want %s", e.Field, e.Value, e.Want)
}
