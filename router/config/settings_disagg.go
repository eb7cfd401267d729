package config

import "math"

// laterSettings returns settings of Dynamo that Blockyard accepts only with the values that
// change nothing.
func laterSettings() []Setting {
	// Dynamo's own selection has a name too.
	name, policy := domain{unsupported: []string{anyValue}}, domain{words: []string{"default"}, unsupported: []string{anyValue}}
	return []Setting{
		{Name: "router_tracking_hash", Group: GroupLater, Since: "1.5",
			Flags:   []string{"router-tracking-hash"},
			Env:     []string{"DYN_ROUTER_TRACKING_HASH"},
			Meaning: "Hash that names the blocks of running requests. keyed-xxh3-v1 needs a key file and a key id.",
			domain:  domain{words: []string{trackingPublic}, unsupported: []string{trackingKeyed}}, def: trackingPublic, at: func(c *Config) any { return &c.RouterTrackingHash }},
		{Name: "router_tracking_key_file", Group: GroupLater, Since: "1.5",
			Flags:   []string{"router-tracking-key-file"},
			Env:     []string{"DYN_ROUTER_TRACKING_KEY_FILE"},
			Meaning: "File with the 32 bytes of the tracking key.",
			domain:  name, at: func(c *Config) any { return &c.RouterTrackingKeyFile }},
		{Name: "router_tracking_key_id", Group: GroupLater, Since: "1.5",
			Flags:   []string{"router-tracking-key-id"},
			Env:     []string{"DYN_ROUTER_TRACKING_KEY_ID"},
			Meaning: "Name of the tracking key.",
			domain:  name, at: func(c *Config) any { return &c.RouterTrackingKeyID }},
		{Name: "router_prefill_policy", Group: GroupLater, Since: "1.5",
			Flags:   []string{"router-prefill-policy"},
			Env:     []string{"DYN_ROUTER_PREFILL_POLICY"},
			Meaning: "Named worker selection for prefill workers.",
			domain:  policy, at: func(c *Config) any { return &c.RouterPrefillPolicy }},
		{Name: "router_decode_policy", Group: GroupLater, Since: "1.5",
			Flags:   []string{"router-decode-policy"},
			Env:     []string{"DYN_ROUTER_DECODE_POLICY"},
			Meaning: "Named worker selection for decode workers.",
			domain:  policy, at: func(c *Config) any { return &c.RouterDecodePolicy }},
		{Name: "router_worker_selection_policy", Group: GroupLater, Since: "1.5",
			Flags:   []string{"router-worker-selection-policy"},
			Env:     []string{"DYN_ROUTER_WORKER_SELECTION_POLICY"},
			Meaning: "Named worker selection for prefill and decode workers.",
			domain:  policy, at: func(c *Config) any { return &c.RouterWorkerSelectionPolicy }},
	}
}

// disaggSettings returns the settings of workers that only prefill or only decode.
func disaggSettings() []Setting {
	off := unless(func(c *Config) bool { return c.ConditionalDisaggEnabled }, "conditional_disagg_enabled is off")
	bounds := unless(func(c *Config) bool { return c.ConditionalDisaggPolicy != disaggLoad }, "conditional_disagg_policy is "+disaggLoad)
	load := unless(func(c *Config) bool { return c.ConditionalDisaggPolicy != disaggBounding }, "conditional_disagg_policy is "+disaggBounding)
	return []Setting{
		{Name: "prefill_min_tokens", Group: GroupDisagg, Since: "Blockyard",
			Flags:   []string{"router-prefill-min-tokens"},
			Env:     []string{"BLOCKYARD_ROUTER_PREFILL_MIN_TOKENS"},
			Meaning: "Uncached prompt tokens from which on a prefill worker computes the prompt. 0 is Dynamo's behaviour.",
			domain:  domain{max: math.MaxInt64}, def: "256", at: func(c *Config) any { return &c.PrefillMinTokens }},
		{Name: "prefill_timeout_secs", Group: GroupDisagg, Since: "Blockyard",
			Flags:   []string{"router-prefill-timeout-secs"},
			Env:     []string{"BLOCKYARD_ROUTER_PREFILL_TIMEOUT_SECS"},
			Meaning: "Seconds after which a decode worker computes a prompt that a prefill worker has not finished.",
			domain:  domain{lo: 0, hi: maxSeconds, exclusiveLow: true}, def: "30", at: func(c *Config) any { return &c.PrefillTimeoutSecs }},
		{Name: "hand_over_wait_secs", Group: GroupDisagg, Since: "Blockyard",
			Flags:   []string{"router-hand-over-wait-secs"},
			Env:     []string{"BLOCKYARD_ROUTER_HAND_OVER_WAIT_SECS"},
			Meaning: "Seconds after a prefill for which a decode worker waits until the node's agent has the blocks of the prompt. Missing blocks are computed again. The prefill itself has prefill_timeout_secs.",
			domain:  domain{lo: 0.001, hi: 60}, def: "1", at: func(c *Config) any { return &c.HandOverWaitSecs }},
		{Name: "conditional_disagg_enabled", Group: GroupDisagg, Since: "1.5",
			Flags:   []string{"router-conditional-disagg"},
			Env:     []string{"DYN_ROUTER_CONDITIONAL_DISAGG"},
			Meaning: "Let a decode worker compute a prompt where that is faster. Otherwise prefill_min_tokens alone decides.",
			at:      func(c *Config) any { return &c.ConditionalDisaggEnabled }},
		{Name: "conditional_disagg_config", Group: GroupDisagg, Since: "1.5",
			Flags:   []string{"router-conditional-disagg-config"},
			Env:     []string{"DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG"},
			Meaning: "JSON object with the five settings below, named without conditional_disagg_. A setting that is also given by its own name must have the same value.",
			at:      func(c *Config) any { return &c.ConditionalDisaggConfig }},
		{Name: "conditional_disagg_policy", Group: GroupDisagg, Since: "1.5",
			Flags:   []string{"router-conditional-disagg-policy"},
			Env:     []string{"BLOCKYARD_ROUTER_CONDITIONAL_DISAGG_POLICY"},
			Meaning: "Rule for prefill on a decode worker. prefill_load and isl_or_load need conditional_disagg_prefill_busy_threshold or router_queue_threshold.",
			domain:  domain{words: []string{disaggBounding, disaggLoad, disaggEither}}, def: disaggBounding, at: func(c *Config) any { return &c.ConditionalDisaggPolicy }, noEffect: off},
		{Name: "conditional_disagg_eff_isl_threshold", Group: GroupDisagg, Since: "1.5",
			Flags:   []string{"router-conditional-disagg-eff-isl-threshold"},
			Env:     []string{"BLOCKYARD_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD"},
			Meaning: "Uncached prompt tokens below which a decode worker computes a prompt, if the share is small too.",
			domain:  domain{max: math.MaxInt64}, def: "2048", at: func(c *Config) any { return &c.ConditionalDisaggEffISLThreshold }, noEffect: firstReason(off, bounds)},
		{Name: "conditional_disagg_eff_isl_ratio_threshold", Group: GroupDisagg, Since: "1.5",
			Flags:   []string{"router-conditional-disagg-eff-isl-ratio-threshold"},
			Env:     []string{"BLOCKYARD_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD"},
			Meaning: "Uncached share of a prompt below which a decode worker computes the prompt, if the tokens are few too.",
			domain:  share(), def: "0.7", at: func(c *Config) any { return &c.ConditionalDisaggEffISLRatioThreshold }, noEffect: firstReason(off, bounds)},
		{Name: "conditional_disagg_prefill_busy_threshold", Group: GroupDisagg, Since: "1.5",
			Flags:   []string{"router-conditional-disagg-prefill-busy-threshold"},
			Env:     []string{"BLOCKYARD_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD"},
			Meaning: "Share of max_num_batched_tokens above which the least loaded prefill worker is busy.",
			domain:  weight(), at: func(c *Config) any { return &c.ConditionalDisaggPrefillBusyThreshold }, noEffect: firstReason(off, load)},
		{Name: "conditional_disagg_decode_busy_threshold", Group: GroupDisagg, Since: "1.5",
			Flags:   []string{"router-conditional-disagg-decode-busy-threshold"},
			Env:     []string{"BLOCKYARD_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD"},
			Meaning: "Share of max_num_batched_tokens above which the least loaded decode worker is busy and computes no prompts.",
			domain:  weight(), at: func(c *Config) any { return &c.ConditionalDisaggDecodeBusyThreshold }, noEffect: firstReason(off, load)},
	}
}
