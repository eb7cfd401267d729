package command

// routerSettings are the flags of "blockyard router" that stand for settings of
// package router/config, which has their older names, variables and ranges too. A
// flag is a text here, so that package reads flags, variables and documents by one
// rule; what kong takes from a variable is for the help alone.
type routerSettings struct {
	RouterKVOverlapScoreCredit      settingText   `name:"router-kv-overlap-score-credit" aliases:"overlap-score-credit" default:"1" env:"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT" group:"Weighing workers" help:"Credit for a block cached on the device, in blocks."`
	RouterKVOverlapScoreCreditDecay settingText   `name:"router-kv-overlap-score-credit-decay" aliases:"overlap-score-credit-decay" default:"0" env:"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY" group:"Weighing workers" help:"How fast that credit fades on workers with prefill pending."`
	RouterPrefillLoadScale          settingText   `name:"router-prefill-load-scale" aliases:"prefill-load-scale" default:"1" env:"DYN_ROUTER_PREFILL_LOAD_SCALE" group:"Weighing workers" help:"Weight of blocks to compute against blocks that decode."`
	RouterDecodeActiveRequestWeight settingText   `name:"router-decode-active-request-weight" aliases:"decode-active-request-weight" default:"0" env:"DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT" group:"Weighing workers" help:"Cost of a running request besides its blocks, in blocks."`
	RouterHostCacheHitWeight        settingText   `name:"router-host-cache-hit-weight" aliases:"host-cache-hit-weight" default:"0.75" env:"DYN_ROUTER_HOST_CACHE_HIT_WEIGHT" group:"Weighing workers" help:"Worth of a block in host memory, 0 to 1."`
	RouterDiskCacheHitWeight        settingText   `name:"router-disk-cache-hit-weight" aliases:"disk-cache-hit-weight" default:"0.25" env:"DYN_ROUTER_DISK_CACHE_HIT_WEIGHT" group:"Weighing workers" help:"Worth of a block on disk or farther away, 0 to 1."`
	RouterExternalCacheHitWeight    settingText   `name:"router-external-cache-hit-weight" default:"none" env:"BLOCKYARD_ROUTER_EXTERNAL_CACHE_HIT_WEIGHT" group:"Weighing workers" help:"Worth of a block off the node, 0 to 1; none takes the disk's."`
	SharedCacheMultiplier           settingText   `name:"shared-cache-multiplier" default:"0.5" env:"DYN_SHARED_CACHE_MULTIPLIER" group:"Weighing workers" help:"Credit for a block of the shared cache, 0 to 1."`
	RouterKVOverlapScoreWeight      settingText   `name:"router-kv-overlap-score-weight" aliases:"kv-overlap-score-weight" default:"none" env:"DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT,DYN_KV_OVERLAP_SCORE_WEIGHT,DYN_OVERLAP_SCORE_WEIGHT" group:"Weighing workers" help:"Deprecated: --router-prefill-load-scale, and at 0 no credit either."`
	CostFormula                     settingText   `name:"cost-formula" default:"credit" env:"BLOCKYARD_ROUTER_COST_FORMULA" group:"Weighing workers" help:"How blocks become a cost: credit, or overlap_weight as in Dynamo before 1.2."`
	Score                           settingText   `name:"score" default:"weights" env:"BLOCKYARD_ROUTER_SCORE" group:"Weighing workers" help:"What the best worker has least of: weighted blocks (weights) or expected milliseconds to the first token (cost)."`
	WorkerType                      settingText   `name:"worker-type" default:"decode" env:"BLOCKYARD_ROUTER_WORKER_TYPE" group:"Weighing workers" help:"What the workers do: prefill, or decode, which stands for both too."`
	LoadAware                       settingSwitch `name:"load-aware" negatable:"" default:"false" env:"DYN_ROUTER_LOAD_AWARE" group:"Weighing workers" help:"Go by load alone, not by what is cached."`

	RouterMode        settingText   `name:"router-mode" aliases:"mode" default:"kv" env:"BLOCKYARD_ROUTER_MODE,DYN_ROUTER_MODE" group:"Choosing one" help:"How to choose: by what is cached and loaded (kv) or in turn (round-robin)."`
	RouterTemperature settingText   `name:"router-temperature" default:"0" env:"DYN_ROUTER_TEMPERATURE" group:"Choosing one" help:"Above 0, sample workers by a softmax over their costs."`
	FirstOfEqual      settingSwitch `name:"first-of-equal" negatable:"" default:"false" env:"BLOCKYARD_ROUTER_FIRST_OF_EQUAL" group:"Choosing one" help:"Take the first of equally good workers instead of drawing one."`
	Seed              settingText   `name:"seed" default:"0" env:"BLOCKYARD_ROUTER_SEED" group:"Choosing one" help:"Make draws repeatable; 0 does not."`

	RouterKVEvents             settingSwitch `name:"router-kv-events" negatable:"" default:"true" env:"DYN_ROUTER_USE_KV_EVENTS,DYN_USE_KV_EVENTS,DYN_KV_EVENTS" group:"What is cached" help:"Know what is cached from the workers' events; off, guess it from where requests went. On by default."`
	RouterDurableKVEvents      settingSwitch `name:"router-durable-kv-events" negatable:"" default:"false" env:"DYN_ROUTER_DURABLE_KV_EVENTS,DYN_DURABLE_KV_EVENTS" group:"What is cached" help:"Read events from a JetStream stream that keeps them, and keep snapshots beside it."`
	RouterSnapshotThreshold    settingText   `name:"router-snapshot-threshold" default:"1000000" env:"DYN_ROUTER_SNAPSHOT_THRESHOLD" group:"What is cached" help:"Events from one stored snapshot to the next, with --router-durable-kv-events; 0 stores none."`
	RouterResetStates          settingSwitch `name:"router-reset-states" negatable:"" default:"false" env:"DYN_ROUTER_RESET_STATES" group:"What is cached" help:"Discard the stored snapshot at the start, with --router-durable-kv-events."`
	RouterTTLSecs              settingText   `name:"router-ttl-secs" aliases:"router-ttl" default:"120" env:"DYN_ROUTER_TTL_SECS,DYN_ROUTER_TTL" group:"What is cached" help:"Seconds for which a guessed block is believed in, with --no-router-kv-events."`
	RouterMaxTreeSize          settingText   `name:"router-max-tree-size" default:"1048576" env:"DYN_ROUTER_MAX_TREE_SIZE" group:"What is cached" help:"Guessed blocks that are kept, with --no-router-kv-events."`
	RouterPruneTargetRatio     settingText   `name:"router-prune-target-ratio" default:"0.8" env:"DYN_ROUTER_PRUNE_TARGET_RATIO" group:"What is cached" help:"What is left of --router-max-tree-size when it is exceeded."`
	RouterPredictedTTLSecs     settingText   `name:"router-predicted-ttl-secs" default:"none" env:"DYN_ROUTER_PREDICTED_TTL_SECS" group:"What is cached" help:"Seconds for which a request's blocks count as cached before the events say so."`
	Reading                    settingText   `name:"reading" default:"continuation" env:"BLOCKYARD_ROUTER_READING" group:"What is cached" help:"How blocks in several tiers count: from tier to tier (continuation) or each where it lies best (union)."`
	IndexMemory                settingText   `name:"index-memory" default:"8GiB" env:"BLOCKYARD_ROUTER_INDEX_MEMORY" group:"What is cached" help:"Memory that the index of cached blocks may take, such as 8GiB."`
	KVCacheBlockSize           settingText   `name:"kv-cache-block-size" aliases:"router-block-size,block-size" default:"none" env:"DYN_KV_CACHE_BLOCK_SIZE,DYN_ROUTER_BLOCK_SIZE" group:"What is cached" help:"Tokens in a block that all workers must have; none goes by what they announce."`
	RouterEagle                settingSwitch `name:"router-eagle" negatable:"" default:"false" env:"BLOCKYARD_ROUTER_EAGLE" group:"What is cached" help:"The engines hash pairs of tokens (Eagle)."`
	RouterEventThreads         settingText   `name:"router-event-threads" default:"4" env:"DYN_ROUTER_EVENT_THREADS" group:"What is cached" help:"No effect: one writer keeps up."`
	RouterPositionalSearchMode settingText   `name:"router-positional-search-mode" default:"strided" env:"DYN_ROUTER_POSITIONAL_SEARCH_MODE" group:"What is cached" help:"No effect: there is one index."`
	SharedCacheType            settingText   `name:"shared-cache-type" default:"none" env:"DYN_SHARED_CACHE_TYPE" group:"What is cached" help:"Whom to ask what a cache that all workers share holds: none, or an http service."`
	SharedCacheURL             settingText   `name:"shared-cache-url" default:"none" env:"BLOCKYARD_ROUTER_SHARED_CACHE_URL" group:"What is cached" help:"That service."`

	RouterTrackActiveBlocks       settingSwitch `name:"router-track-active-blocks" negatable:"" default:"true" env:"DYN_ROUTER_TRACK_ACTIVE_BLOCKS,DYN_TRACK_ACTIVE_BLOCKS" group:"Load" help:"Count the blocks of running requests as decode load. On by default."`
	RouterTrackOutputBlocks       settingSwitch `name:"router-track-output-blocks" negatable:"" default:"false" env:"DYN_ROUTER_TRACK_OUTPUT_BLOCKS" group:"Load" help:"Count the blocks that they generate too."`
	RouterAssumeKVReuse           settingSwitch `name:"router-assume-kv-reuse" negatable:"" default:"true" env:"DYN_ROUTER_ASSUME_KV_REUSE,DYN_ASSUME_KV_REUSE" group:"Load" help:"Count a block that several requests share once. On by default."`
	RouterTrackPrefillTokens      settingSwitch `name:"router-track-prefill-tokens" negatable:"" default:"true" env:"DYN_ROUTER_TRACK_PREFILL_TOKENS" group:"Load" help:"Count prompt tokens to be computed as prefill load. On by default."`
	RouterPrefillLoadModel        settingText   `name:"router-prefill-load-model" default:"none" env:"DYN_ROUTER_PREFILL_LOAD_MODEL" group:"Load" help:"How prefill load fades before it is reported done: none."`
	RouterActiveRequestExpirySecs settingText   `name:"router-active-request-expiry-secs" default:"300" env:"DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS" group:"Load" help:"Seconds of silence after which a request is taken off the books."`
	RouterMaxActiveRequests       settingText   `name:"router-max-active-requests" default:"1048576" env:"BLOCKYARD_ROUTER_MAX_ACTIVE_REQUESTS" group:"Load" help:"Running requests that are on the books."`

	RouterQueueThreshold             settingText `name:"router-queue-threshold" default:"none" env:"DYN_ROUTER_QUEUE_THRESHOLD" group:"Queue and busy workers" help:"Requests wait while every worker has more prefill pending than this share of a step; none lets none wait."`
	RouterQueuePolicy                settingText `name:"router-queue-policy" default:"fcfs" env:"DYN_ROUTER_QUEUE_POLICY" group:"Queue and busy workers" help:"Who leaves the queue first: fcfs."`
	RouterOverlapRefreshAfterSecs    settingText `name:"router-overlap-refresh-after-secs" default:"10" env:"DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS" group:"Queue and busy workers" help:"Seconds of waiting after which what is cached is looked up again; 0 does not."`
	ActiveDecodeBlocksThreshold      settingText `name:"active-decode-blocks-threshold" default:"none" env:"DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD" group:"Queue and busy workers" help:"Send nothing to workers with more than this share of their blocks in use."`
	ActivePrefillTokensThreshold     settingText `name:"active-prefill-tokens-threshold" default:"none" env:"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD" group:"Queue and busy workers" help:"Send nothing to workers with more prefill tokens pending."`
	ActivePrefillTokensThresholdFrac settingText `name:"active-prefill-tokens-threshold-frac" default:"none" env:"DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC" group:"Queue and busy workers" help:"The same as a share of a step."`

	RouterMinInitialWorkers settingText   `name:"router-min-initial-workers" default:"0" env:"DYN_ROUTER_MIN_INITIAL_WORKERS" group:"Start and server" help:"Workers to wait for at the start."`
	SkipInitialWorkerWait   settingSwitch `name:"skip-initial-worker-wait" negatable:"" default:"false" env:"BLOCKYARD_ROUTER_SKIP_INITIAL_WORKER_WAIT" group:"Start and server" help:"Do not wait for them."`
	HTTPHost                settingText   `name:"http-host" default:"none" env:"DYN_HTTP_HOST" group:"Start and server" help:"Host of --http, with --http-port."`
	HTTPPort                settingText   `name:"http-port" default:"none" env:"DYN_HTTP_PORT" group:"Start and server" help:"Port of --http."`
	HTTPOverloadStatus      settingText   `name:"http-overload-status" default:"529" env:"DYN_HTTP_OVERLOAD_STATUS_CODE" group:"Start and server" help:"HTTP status of a request that is refused because the workers have too much to do."`

	hiddenSettings
}

// hiddenSettings are older names of switches, which kong cannot negate as an
// alias, and flags of which nothing but the default is there yet. The document of
// settings has them all.
type hiddenSettings struct {
	OldKVEvents                                 settingSwitch `name:"kv-events" negatable:"" hidden:""`
	OldDurableKVEvents                          settingSwitch `name:"durable-kv-events" negatable:"" hidden:""`
	UseRemoteIndexer                            settingSwitch `name:"use-remote-indexer" negatable:"" hidden:""`
	ServeIndexer                                settingSwitch `name:"serve-indexer" negatable:"" hidden:""`
	OldTrackActiveBlocks                        settingSwitch `name:"track-active-blocks" negatable:"" hidden:""`
	OldTrackOutputBlocks                        settingSwitch `name:"track-output-blocks" negatable:"" hidden:""`
	OldAssumeKVReuse                            settingSwitch `name:"assume-kv-reuse" negatable:"" hidden:""`
	RouterReplicaSync                           settingSwitch `name:"router-replica-sync" negatable:"" hidden:""`
	RouterPolicyConfig                          settingText   `name:"router-policy-config" hidden:""`
	RouterTrackingHash                          settingText   `name:"router-tracking-hash" hidden:""`
	RouterTrackingKeyFile                       settingText   `name:"router-tracking-key-file" hidden:""`
	RouterTrackingKeyID                         settingText   `name:"router-tracking-key-id" hidden:""`
	RouterSessionAffinityTTLSecs                settingText   `name:"router-session-affinity-ttl-secs" hidden:""`
	RouterPrefillPolicy                         settingText   `name:"router-prefill-policy" hidden:""`
	RouterDecodePolicy                          settingText   `name:"router-decode-policy" hidden:""`
	RouterWorkerSelectionPolicy                 settingText   `name:"router-worker-selection-policy" hidden:""`
	RouterConditionalDisagg                     settingSwitch `name:"router-conditional-disagg" negatable:"" hidden:""`
	RouterConditionalDisaggConfig               settingText   `name:"router-conditional-disagg-config" hidden:""`
	RouterConditionalDisaggPolicy               settingText   `name:"router-conditional-disagg-policy" hidden:""`
	RouterConditionalDisaggEffISLThreshold      settingText   `name:"router-conditional-disagg-eff-isl-threshold" hidden:""`
	RouterConditionalDisaggEffISLRatioThreshold settingText   `name:"router-conditional-disagg-eff-isl-ratio-threshold" hidden:""`
	RouterConditionalDisaggPrefillBusyThreshold settingText   `name:"router-conditional-disagg-prefill-busy-threshold" hidden:""`
	RouterConditionalDisaggDecodeBusyThreshold  settingText   `name:"router-conditional-disagg-decode-busy-threshold" hidden:""`
}
