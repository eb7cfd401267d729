package config

// A setting is idle when what it governs does not take place. The functions here say
// why, or nothing where it does.

// unless is why a setting is idle while its condition does not hold.
func unless(condition func(*Config) bool, why string) func(*Config) string {
	return func(c *Config) string {
		if condition(c) {
			return ""
		}
		return why
	}
}

func always(why string) func(*Config) string { return func(*Config) string { return why } }

// first is the first of several reasons.
func first(reasons ...func(*Config) string) func(*Config) string {
	return func(c *Config) string {
		for _, reason := range reasons {
			if why := reason(c); why != "" {
				return why
			}
		}
		return ""
	}
}

var (
	inTurn           = unless(func(c *Config) bool { return c.RouterMode != ModeRoundRobin }, "router_mode is round-robin")
	byOverlapWeight  = unless(func(c *Config) bool { return c.CostFormula != FormulaOverlapWeight }, "cost_formula is overlap_weight")
	prefillUntracked = unless(func(c *Config) bool { return c.RouterTrackPrefillTokens },
		"router_track_prefill_tokens is off, which only a request may change")
	blocksUntracked = unless(func(c *Config) bool { return c.RouterTrackActiveBlocks }, "router_track_active_blocks is off")
	nothingWaits    = unless(func(c *Config) bool { return c.RouterQueueThreshold != nil }, "router_queue_threshold is not set")
	nothingCached   = unless(func(c *Config) bool { return c.overlapCredit() > 0 }, "overlap_score_credit is 0")
	eventsTell      = unless(func(c *Config) bool { return !c.UseKVEvents }, "use_kv_events is on")
	nothingGuessed  = unless(func(c *Config) bool { return !c.UseKVEvents || c.RouterPredictedTTLSecs != nil },
		"use_kv_events is on and router_predicted_ttl_secs is not set")
)

// nothingShared is why the credit for a shared cache is idle. That the command has one
// by default needs no word.
func nothingShared(c *Config) string {
	if usual := CommandDefault(); c.SharedCacheType == SharedNone && c.SharedCacheMultiplier != usual.SharedCacheMultiplier {
		return "shared_cache_type is none"
	}
	return ""
}
