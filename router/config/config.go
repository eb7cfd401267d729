package config

import "cmp"

// Config is the router's configuration. Settings has the range, names and effect of each
// field. The names in JSON are Dynamo's. A nil pointer means that the setting is off.
type Config struct {
	// Cost of a worker.
	OverlapScoreCredit        float64 `json:"overlap_score_credit"`
	OverlapScoreCreditDecay   float64 `json:"overlap_score_credit_decay"`
	PrefillLoadScale          float64 `json:"prefill_load_scale"`
	DecodeActiveRequestWeight float64 `json:"decode_active_request_weight"`
	HostCacheHitWeight        float64 `json:"host_cache_hit_weight"`
	DiskCacheHitWeight        float64 `json:"disk_cache_hit_weight"`
	// ExternalCacheHitWeight is DiskCacheHitWeight when nil.
	ExternalCacheHitWeight *float64 `json:"external_cache_hit_weight"`
	SharedCacheMultiplier  float64  `json:"shared_cache_multiplier"`
	// OverlapScoreWeight is the older name of PrefillLoadScale and wins over it. At 0 it also
	// turns OverlapScoreCredit off.
	OverlapScoreWeight *float64 `json:"overlap_score_weight"`
	CostFormula        string   `json:"cost_formula"`
	ScoreWeights       string   `json:"score_weights"`
	Score              string   `json:"score"`
	Objective          string   `json:"objective"`
	WorkerType         string   `json:"worker_type"`
	LoadAware          bool     `json:"load_aware"`

	// Choice of a worker.
	RouterMode        string  `json:"router_mode"`
	RouterTemperature float64 `json:"router_temperature"`
	FirstOfEqual      bool    `json:"first_of_equal"`
	Seed              uint64  `json:"seed"`

	// Index of the workers' caches.
	UseKVEvents            bool     `json:"use_kv_events"`
	DurableKVEvents        bool     `json:"durable_kv_events"`
	RouterSnapshotEvents   *uint32  `json:"router_snapshot_threshold"`
	RouterResetStates      bool     `json:"router_reset_states"`
	IndexReading           string   `json:"index_reading"`
	IndexMemoryBytes       uint64   `json:"index_memory_bytes"`
	MissMemoryBlocks       uint64   `json:"miss_memory_blocks"`
	KVCacheBlockSize       *uint32  `json:"kv_cache_block_size"`
	IsEagle                bool     `json:"is_eagle"`
	RouterTTLSecs          float64  `json:"router_ttl_secs"`
	RouterMaxTreeSize      uint64   `json:"router_max_tree_size"`
	RouterPruneTargetRatio float64  `json:"router_prune_target_ratio"`
	RouterPredictedTTLSecs *float64 `json:"router_predicted_ttl_secs"`
	RouterEventThreads     uint32   `json:"router_event_threads"`
	PositionalSearchMode   string   `json:"router_positional_search_mode"`
	SharedCacheType        string   `json:"shared_cache_type"`
	SharedCacheURL         *string  `json:"shared_cache_url"`
	UseRemoteIndexer       bool     `json:"use_remote_indexer"`
	ServeIndexer           bool     `json:"serve_indexer"`

	// Account of the workers' load.
	RouterTrackActiveBlocks     bool    `json:"router_track_active_blocks"`
	RouterTrackOutputBlocks     bool    `json:"router_track_output_blocks"`
	RouterAssumeKVReuse         bool    `json:"router_assume_kv_reuse"`
	RouterTrackPrefillTokens    bool    `json:"router_track_prefill_tokens"`
	RouterPrefillLoadModel      string  `json:"router_prefill_load_model"`
	ActiveRequestExpirySecs     float64 `json:"router_active_request_expiry_secs"`
	MaxActiveRequests           uint64  `json:"router_max_active_requests"`
	RouterReplicaSync           bool    `json:"router_replica_sync"`
	RouterTrackingHash          string  `json:"router_tracking_hash"`
	RouterTrackingKeyFile       *string `json:"router_tracking_key_file"`
	RouterTrackingKeyID         *string `json:"router_tracking_key_id"`
	SkipInitialWorkerWait       bool    `json:"skip_initial_worker_wait"`
	MinInitialWorkers           uint32  `json:"router_min_initial_workers"`
	SessionAffinityTTLSecs      *uint32 `json:"router_session_affinity_ttl_secs"`
	RouterPrefillPolicy         *string `json:"router_prefill_policy"`
	RouterDecodePolicy          *string `json:"router_decode_policy"`
	RouterWorkerSelectionPolicy *string `json:"router_worker_selection_policy"`

	// Queue and busy workers.
	RouterQueueThreshold             *float64 `json:"router_queue_threshold"`
	RouterQueuePolicy                string   `json:"router_queue_policy"`
	QueueMaxWaitSecs                 float64  `json:"router_queue_max_wait_secs"`
	RouterPolicyConfig               *string  `json:"router_policy_config"`
	OverlapRefreshAfterSecs          float64  `json:"router_overlap_refresh_after_secs"`
	ActiveDecodeBlocksThreshold      *float64 `json:"active_decode_blocks_threshold"`
	ActivePrefillTokensThreshold     *uint64  `json:"active_prefill_tokens_threshold"`
	ActivePrefillTokensThresholdFrac *float64 `json:"active_prefill_tokens_threshold_frac"`

	// Prefill and decode on different workers.
	PrefillMinTokens                      uint64   `json:"prefill_min_tokens"`
	PrefillTimeoutSecs                    float64  `json:"prefill_timeout_secs"`
	HandOverWaitSecs                      float64  `json:"hand_over_wait_secs"`
	ConditionalDisaggEnabled              bool     `json:"conditional_disagg_enabled"`
	ConditionalDisaggConfig               *string  `json:"conditional_disagg_config"`
	ConditionalDisaggPolicy               string   `json:"conditional_disagg_policy"`
	ConditionalDisaggEffISLThreshold      uint64   `json:"conditional_disagg_eff_isl_threshold"`
	ConditionalDisaggEffISLRatioThreshold float64  `json:"conditional_disagg_eff_isl_ratio_threshold"`
	ConditionalDisaggPrefillBusyThreshold *float64 `json:"conditional_disagg_prefill_busy_threshold"`
	ConditionalDisaggDecodeBusyThreshold  *float64 `json:"conditional_disagg_decode_busy_threshold"`

	// HTTPHost is the address of the front door; nil means all addresses.
	HTTPHost *string `json:"http_host"`
	// HTTPPort is the port of the front door and opens it; nil means 8000 when worker servers
	// are named.
	HTTPPort *uint32 `json:"http_port"`
	// HTTPOverloadStatus is the HTTP status of a request refused because of load.
	HTTPOverloadStatus uint32 `json:"http_overload_status"`
}

// Default returns the configuration of a program that embeds the router and changes nothing.
func Default() Config {
	var c Config
	for _, s := range Settings() {
		s.setDefault(&c, s.def)
	}
	return c
}

// CommandDefault returns the defaults of the command line. They differ from Default where
// the defaults of Dynamo's command differ from those of its library.
func CommandDefault() Config {
	var c Config
	for _, s := range Settings() {
		s.setDefault(&c, cmp.Or(s.commandDef, s.def))
	}
	return c
}

// Objectives are the values of objective, in the order of price.Objective.
var Objectives = []string{ObjectiveBalanced, ObjectiveTTFT, ObjectiveThroughput}

// Values of the settings that accept one of several words.
const (
	FormulaCredit        = "credit"
	FormulaOverlapWeight = "overlap_weight"

	WeightsDynamo = "dynamo"
	WeightsTuned  = "tuned"

	ScoreWeights = "weights"
	ScorePrice   = "price"

	ObjectiveBalanced   = "balanced"
	ObjectiveTTFT       = "ttft"
	ObjectiveThroughput = "throughput"

	WorkerDecode  = "decode"
	WorkerPrefill = "prefill"

	ModeKV          = "kv"
	ModeRoundRobin  = "round-robin"
	ModeRandom      = "random"
	ModePowerOfTwo  = "power-of-two"
	ModeLeastLoaded = "least-loaded"
	ModeDirect      = "direct"

	ReadingContinuation = "continuation"
	ReadingUnion        = "union"

	SharedNone = "none"
	SharedHTTP = "http"

	LoadModelNone = "none"
	LoadModelAIC  = "aic"

	trackingPublic = "public-xxh3-v1"
	trackingKeyed  = "keyed-xxh3-v1"

	disaggBounding = "isl_bounding"
	disaggLoad     = "prefill_load"
	disaggEither   = "isl_or_load"
)
