package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Notice says that a setting is deprecated or has no effect.
type Notice struct {
	// Field is its name, and Text the rest of the sentence.
	Field, Text string
}

// String is the notice as a line of a log.
func (n Notice) String() string { return n.Field + " " + n.Text }

// Validate reports the first thing that is wrong: a value that is not one of its
// field's, then two that do not go together, then one that is not there yet, which
// is a NotYetError. The notices, in the order of the table, name what is
// deprecated or has no effect; log them once at the start.
func (c *Config) Validate() ([]Notice, error) {
	settings := Settings()
	for i := range settings {
		s := &settings[i]
		if p := s.at(c); !s.span.check(p) {
			return nil, s.span.wrong(s.label(), p, text(p))
		}
	}
	if err := c.checkTogether(settings); err != nil {
		return nil, err
	}
	for i := range settings {
		if err := settings[i].span.notYet(settings[i].label(), settings[i].at(c)); err != nil {
			return nil, err
		}
	}
	return c.notices(settings), nil
}

// rule is a condition on several settings.
type rule struct {
	broken bool
	// field is the setting to blame, and needs what it wants of the others.
	field, needs string
}

func (c *Config) rules() []rule {
	busy := cmp.Or(c.ConditionalDisaggPrefillBusyThreshold, c.RouterQueueThreshold)
	return []rule{
		{c.DurableKVEvents && !c.UseKVEvents, "durable_kv_events", "use_kv_events"},
		{c.RouterTrackOutputBlocks && !c.RouterTrackActiveBlocks, "router_track_output_blocks", "router_track_active_blocks"},
		{c.RouterPrefillLoadModel == LoadModelAIC && !c.RouterTrackPrefillTokens, "router_prefill_load_model", "router_track_prefill_tokens"},
		{c.RouterPredictedTTLSecs != nil && !c.UseKVEvents, "router_predicted_ttl_secs", "use_kv_events"},
		{c.SharedCacheType == SharedHTTP && c.SharedCacheURL == nil, "shared_cache_type", "shared_cache_url"},
		{c.SharedCacheType != SharedHTTP && c.SharedCacheURL != nil, "shared_cache_url", "shared_cache_type http"},
		{c.ServeIndexer && c.UseRemoteIndexer, "serve_indexer", "use_remote_indexer off"},
		{c.ServeIndexer && c.overlapCredit() == 0, "serve_indexer", "an overlap_score_credit above 0"},
		{c.RouterTrackingHash == trackingKeyed && (c.RouterTrackingKeyFile == nil || c.RouterTrackingKeyID == nil), "router_tracking_hash", "router_tracking_key_file and router_tracking_key_id"},
		{c.ConditionalDisaggEnabled && c.ConditionalDisaggPolicy != disaggBounding && busy == nil, "conditional_disagg_policy", "conditional_disagg_prefill_busy_threshold or router_queue_threshold"},
		{c.LoadAware && !c.presetHolds(), "load_aware", "what it sets to be set; ParseJSON and Resolve do that"},
		{c.ConditionalDisaggConfig != nil && !c.ConditionalDisaggEnabled, "conditional_disagg_config", "conditional_disagg_enabled"},
	}
}

func (c *Config) checkTogether(settings []Setting) error {
	for _, r := range c.rules() {
		if r.broken {
			s := find(settings, r.field)
			return fmt.Errorf("%s %.64q: needs %s", s.label(), s.Text(c), r.needs)
		}
	}
	return nil
}

func (c *Config) notices(settings []Setting) []Notice {
	var found []Notice
	for i := range settings {
		s := &settings[i]
		switch why := s.idles(c); {
		case why != "":
			found = append(found, Notice{s.Name, fmt.Sprintf("%s has no effect: %s", s.Text(c), why)})
		case s.Name == "overlap_score_weight" && c.OverlapScoreWeight != nil:
			found = append(found, Notice{s.Name, fmt.Sprintf("is deprecated: it sets prefill_load_scale to %v%s", *c.OverlapScoreWeight, c.alsoCredit())})
		case s.Name == "durable_kv_events" && c.DurableKVEvents:
			found = append(found, Notice{s.Name, "is deprecated: Dynamo has removed it; here it goes on working"})
		}
	}
	return found
}

func (c *Config) alsoCredit() string {
	if *c.OverlapScoreWeight == 0 {
		return ", and overlap_score_credit to 0"
	}
	return ""
}

// notYet is the error of a value that is one of the span's later ones, or nil.
func (s *span) notYet(label string, p any) error {
	value := text(p)
	if slices.Contains(s.words, value) {
		return nil
	}
	if slices.Contains(s.later, value) || value != "none" && slices.Contains(s.later, anyValue) {
		return &NotYetError{Field: label, Value: value, Want: s.instead(p)}
	}
	return nil
}

// instead is what to write in place of a value that is not there yet.
func (s *span) instead(p any) string {
	switch p.(type) {
	case *bool:
		return "false"
	case *string:
		return strings.Join(s.words, " or ")
	}
	return strings.Join(append([]string{"none"}, s.words...), " or ")
}

// NotYetError says that a value is known from Dynamo and that Blockyard does not
// have what it asks for.
type NotYetError struct {
	// Field names the setting, Value is what it was set to and Want what works.
	Field, Value, Want string
}

// Error names field, value and what to write instead.
func (e *NotYetError) Error() string {
	return fmt.Sprintf("%s %.64q: not yet; want %s", e.Field, e.Value, e.Want)
}
