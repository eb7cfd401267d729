package config

import "math"

func eventSettings() []Setting {
	return []Setting{
		{Name: "use_kv_events", Group: GroupCache, Since: "0.6",
			Flags:   []string{"router-kv-events", "kv-events"},
			Env:     []string{"DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS", "DYN_KV_EVENTS"},
			Meaning: "Know what is cached from the workers' events. Off, it is guessed from where requests went.",
			at:      func(c *Config) any { return &c.UseKVEvents }},
		{Name: "durable_kv_events", Group: GroupCache, Since: "0.9–1.5",
			Flags:   []string{"router-durable-kv-events", "durable-kv-events"},
			Env:     []string{"DYN_ROUTER_DURABLE_KV_EVENTS", "DYN_DURABLE_KV_EVENTS"},
			Meaning: "Deprecated in Dynamo, which has removed it. Here it works: events are read from a JetStream stream that keeps them, and snapshots are kept beside it. Needs use_kv_events.",
			at:      func(c *Config) any { return &c.DurableKVEvents }},
		{Name: "router_snapshot_threshold", Group: GroupCache, Since: "0.9–1.5",
			Flags:   []string{"router-snapshot-threshold"},
			Env:     []string{"DYN_ROUTER_SNAPSHOT_THRESHOLD"},
			Meaning: "Events from one stored snapshot to the next, with durable_kv_events; none stores none. Dynamo takes it and does nothing.",
			span:    span{min: 1, max: math.MaxUint32, zeroOff: true}, at: func(c *Config) any { return &c.RouterSnapshotEvents },
			idle: unless(func(c *Config) bool { return c.DurableKVEvents }, "durable_kv_events is off")},
		{Name: "router_reset_states", Group: GroupCache, Since: "0.9–1.5",
			Flags:   []string{"router-reset-states"},
			Env:     []string{"DYN_ROUTER_RESET_STATES"},
			Meaning: "Discard the stored snapshot at the start instead of beginning with it. Needs durable_kv_events. Dynamo takes it and does nothing.",
			at:      func(c *Config) any { return &c.RouterResetStates }},
		{Name: "router_ttl_secs", Group: GroupCache, Since: "0.9",
			Flags:   []string{"router-ttl-secs", "router-ttl"},
			Env:     []string{"DYN_ROUTER_TTL_SECS", "DYN_ROUTER_TTL"},
			Meaning: "Seconds for which a guessed block is believed in, without use_kv_events.",
			span:    seconds(), at: func(c *Config) any { return &c.RouterTTLSecs }, idle: whenGuessing},
		{Name: "router_max_tree_size", Group: GroupCache, Since: "0.9–1.2",
			Flags:   []string{"router-max-tree-size"},
			Env:     []string{"DYN_ROUTER_MAX_TREE_SIZE"},
			Meaning: "Guessed blocks that are kept, without use_kv_events.",
			span:    span{min: 1, max: math.MaxInt64}, at: func(c *Config) any { return &c.RouterMaxTreeSize }, idle: whenGuessing},
		{Name: "router_prune_target_ratio", Group: GroupCache, Since: "0.9–1.2",
			Flags:   []string{"router-prune-target-ratio"},
			Env:     []string{"DYN_ROUTER_PRUNE_TARGET_RATIO"},
			Meaning: "What is left of router_max_tree_size when it is exceeded: those that would expire last.",
			span:    share(), at: func(c *Config) any { return &c.RouterPruneTargetRatio }, idle: whenGuessing},
		{Name: "router_predicted_ttl_secs", Group: GroupCache, Since: "1.5",
			Flags:   []string{"router-predicted-ttl-secs"},
			Env:     []string{"DYN_ROUTER_PREDICTED_TTL_SECS"},
			Meaning: "Seconds for which a request's blocks count as cached where it went, until the events say so; none waits for the events. Needs use_kv_events.",
			span:    seconds(), at: func(c *Config) any { return &c.RouterPredictedTTLSecs }},
	}
}

func cacheSettings() []Setting {
	return []Setting{
		{Name: "index_reading", Group: GroupCache, Since: "Blockyard",
			Flags:   []string{"reading"},
			Env:     []string{"BLOCKYARD_ROUTER_READING"},
			Meaning: "How a prompt's blocks in several tiers count: continuation goes from tier to tier without turning back, as Dynamo does; union counts each block where it lies best.",
			span:    span{words: []string{ReadingContinuation, ReadingUnion}}, at: func(c *Config) any { return &c.IndexReading }},
		{Name: "index_memory_bytes", Group: GroupCache, Since: "Blockyard",
			Flags:   []string{"index-memory"},
			Env:     []string{"BLOCKYARD_ROUTER_INDEX_MEMORY"},
			Meaning: "Memory that the index of cached blocks may take. Beyond it the ends of prefixes are forgotten.",
			span:    span{min: 1 << 20, max: 1 << 46, size: true}, at: func(c *Config) any { return &c.IndexMemoryBytes }},
		{Name: "kv_cache_block_size", Group: GroupCache, Since: "0.6",
			Flags:   []string{"kv-cache-block-size", "router-block-size", "block-size"},
			Env:     []string{"DYN_KV_CACHE_BLOCK_SIZE", "DYN_ROUTER_BLOCK_SIZE"},
			Meaning: "Tokens in a block that all workers must have; none goes by what they announce.",
			span:    span{min: 1, max: 1 << 16}, at: func(c *Config) any { return &c.KVCacheBlockSize }},
		{Name: "is_eagle", Group: GroupCache, Since: "Blockyard",
			Flags:   []string{"router-eagle"},
			Env:     []string{"BLOCKYARD_ROUTER_EAGLE"},
			Meaning: "The engines hash pairs of tokens, as they do for Eagle's speculative decoding: a block covers one token more than kv_cache_block_size. It must be so for all workers.",
			at:      func(c *Config) any { return &c.IsEagle }},
		{Name: "router_event_threads", Group: GroupCache, Since: "0.9",
			Flags:   []string{"router-event-threads"},
			Env:     []string{"DYN_ROUTER_EVENT_THREADS"},
			Meaning: "Taken, no effect: one writer keeps up, and readers do not wait for it.",
			span:    span{min: 1, max: math.MaxUint32}, at: func(c *Config) any { return &c.RouterEventThreads },
			idle: always("one writer keeps up, and readers do not wait for it")},
		{Name: "router_positional_search_mode", Group: GroupCache, Since: "1.5",
			Flags:   []string{"router-positional-search-mode"},
			Env:     []string{"DYN_ROUTER_POSITIONAL_SEARCH_MODE"},
			Meaning: "Taken, no effect: there is one index, and its answers are exact.",
			span:    span{words: []string{"strided", "binary"}}, at: func(c *Config) any { return &c.PositionalSearchMode },
			idle: always("there is one index, and its answers are exact")},
		{Name: "shared_cache_type", Group: GroupCache, Since: "1.2",
			Flags:   []string{"shared-cache-type"},
			Env:     []string{"DYN_SHARED_CACHE_TYPE"},
			Meaning: "Whom to ask what a cache that all workers share holds: nobody (none) or an HTTP service at shared_cache_url (http, which Dynamo does not have).",
			span:    span{words: []string{SharedNone, SharedHTTP}, later: []string{"hicache"}}, at: func(c *Config) any { return &c.SharedCacheType }},
		{Name: "shared_cache_url", Group: GroupCache, Since: "Blockyard",
			Flags:   []string{"shared-cache-url"},
			Env:     []string{"BLOCKYARD_ROUTER_SHARED_CACHE_URL"},
			Meaning: "That service; its path check_blocks is asked. Needs shared_cache_type http.",
			span:    span{web: true}, at: func(c *Config) any { return &c.SharedCacheURL }},
		{Name: "use_remote_indexer", Group: GroupLater, Since: "1.2",
			Flags:   []string{"use-remote-indexer"},
			Env:     []string{"DYN_USE_REMOTE_INDEXER"},
			Meaning: "Ask another router's index instead of keeping one.",
			span:    span{later: []string{"true"}}, at: func(c *Config) any { return &c.UseRemoteIndexer }},
		{Name: "serve_indexer", Group: GroupLater, Since: "1.2",
			Flags:   []string{"serve-indexer"},
			Env:     []string{"DYN_SERVE_INDEXER"},
			Meaning: "Let other routers ask this one's index. Excludes use_remote_indexer and needs an overlap_score_credit.",
			span:    span{later: []string{"true"}}, at: func(c *Config) any { return &c.ServeIndexer }},
	}
}

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

// whenGuessing is why what governs guesses is idle when there are none.
func whenGuessing(c *Config) string {
	if c.UseKVEvents {
		return "use_kv_events is on"
	}
	return ""
}
