package engine

import "sync/atomic"

// Stats counts what an engine has done since its start.
type Stats struct {
	// Requests that were accepted, refused (queue full, too long, shutting down),
	// finished, given up by their client, and preempted (counted each time).
	Requests  uint64 `json:"requests"`
	Refused   uint64 `json:"refused"`
	Finished  uint64 `json:"finished"`
	Aborted   uint64 `json:"aborted"`
	Preempted uint64 `json:"preempted"`
	// Steps that computed something, and the tokens they computed.
	Steps  uint64 `json:"steps"`
	Tokens uint64 `json:"tokens"`
	// Resets of the prefix cache that were carried out and that were refused.
	Resets        uint64 `json:"resets"`
	ResetsRefused uint64 `json:"resets_refused"`
	// BlocksVerified is how many loaded blocks were compared in full, WrongBytes
	// how many of their bytes differed.
	BlocksVerified uint64 `json:"blocks_verified"`
	WrongBytes     uint64 `json:"wrong_bytes"`
	// Lookups asked, lookups that got no answer, blocks loaded well, and blocks
	// whose load failed or brought wrong bytes.
	Lookups       uint64 `json:"lookups"`
	LookupsFailed uint64 `json:"lookups_failed"`
	BlocksLoaded  uint64 `json:"blocks_loaded"`
	LoadsFailed   uint64 `json:"loads_failed"`
	// Blocks offered for storing: stored, there already, refused by the agent,
	// failed (agent lost), and not even offered because the queue was full.
	BlocksStored   uint64 `json:"blocks_stored"`
	StoresPresent  uint64 `json:"stores_present"`
	StoresRefused  uint64 `json:"stores_refused"`
	StoresFailed   uint64 `json:"stores_failed"`
	StoresOverflow uint64 `json:"stores_overflow"`
	// Sessions with an agent that were opened and dials that failed; requests that
	// were served without an agent's help although one is configured.
	Sessions uint64 `json:"sessions"`
	// Sessions that went on where one with an agent that died had ended, and blocks
	// that were stored by them although that agent had granted their slots; those
	// count as failed stores too.
	Resumes       uint64 `json:"resumes"`
	BlocksResumed uint64 `json:"blocks_resumed"`
	DialsFailed   uint64 `json:"dials_failed"`
	Unconnected   uint64 `json:"unconnected"`
	// Event frames sent live, dropped on purpose, replayed, and lost because
	// libzmq refused them; replay requests that were malformed and ignored.
	FramesSent     uint64 `json:"frames_sent"`
	FramesDropped  uint64 `json:"frames_dropped"`
	FramesReplayed uint64 `json:"frames_replayed"`
	FramesFailed   uint64 `json:"frames_failed"`
	ReplaysIgnored uint64 `json:"replays_ignored"`
	// Device blocks: all, those without a reference, and distinct contents that
	// are findable. Requests that run and that wait.
	DeviceBlocks    int `json:"device_blocks"`
	DeviceFree      int `json:"device_free"`
	DeviceResident  int `json:"device_resident"`
	RequestsRunning int `json:"requests_running"`
	RequestsWaiting int `json:"requests_waiting"`
}

// counters are what several goroutines count; the core adds the gauges.
type counters struct {
	requests, refused, finished, aborted, preempted, steps, tokens, resets, resetsRefused,
	verified, wrongBytes, lookups, lookupsFailed, loaded, loadsFailed,
	stored, present, storesRefused, storesFailed, storesOverflow,
	sessions, dialsFailed, unconnected, resumes, resumedBlocks,
	framesSent, framesDropped, framesReplayed, framesFailed, replaysIgnored atomic.Uint64
}

// snapshot is the counters as Stats, gauges zero.
func (c *counters) snapshot() Stats {
	return Stats{
		Requests:       c.requests.Load(),
		Refused:        c.refused.Load(),
		Finished:       c.finished.Load(),
		Aborted:        c.aborted.Load(),
		Preempted:      c.preempted.Load(),
		Steps:          c.steps.Load(),
		Tokens:         c.tokens.Load(),
		Resets:         c.resets.Load(),
		ResetsRefused:  c.resetsRefused.Load(),
		BlocksVerified: c.verified.Load(),
		WrongBytes:     c.wrongBytes.Load(),
		Lookups:        c.lookups.Load(),
		LookupsFailed:  c.lookupsFailed.Load(),
		BlocksLoaded:   c.loaded.Load(),
		LoadsFailed:    c.loadsFailed.Load(),
		BlocksStored:   c.stored.Load(),
		StoresPresent:  c.present.Load(),
		StoresRefused:  c.storesRefused.Load(),
		StoresFailed:   c.storesFailed.Load(),
		StoresOverflow: c.storesOverflow.Load(),
		Sessions:       c.sessions.Load(),
		Resumes:        c.resumes.Load(),
		BlocksResumed:  c.resumedBlocks.Load(),
		DialsFailed:    c.dialsFailed.Load(),
		Unconnected:    c.unconnected.Load(),
		FramesSent:     c.framesSent.Load(),
		FramesDropped:  c.framesDropped.Load(),
		FramesReplayed: c.framesReplayed.Load(),
		FramesFailed:   c.framesFailed.Load(),
		ReplaysIgnored: c.replaysIgnored.Load(),
	}
}
