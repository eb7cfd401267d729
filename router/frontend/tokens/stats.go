package tokens

import "sync/atomic"

// Stats counts what a Source did.
type Stats struct {
	Given       uint64 `json:"given" metric:"prompts_given" help:"Prompts that came as token ids."`
	Exact       uint64 `json:"exact" metric:"prompts_exact" help:"Prompts whose text was tokenized as the engine does it."`
	Approximate uint64 `json:"approximate" metric:"prompts_approximate" help:"Prompts whose text was tokenized in another way than the engine's."`
	None        uint64 `json:"none" metric:"prompts_without_tokens" help:"Prompts without token ids."`

	Hits      uint64 `json:"hits" metric:"cache_hits" help:"Texts found in the cache."`
	Misses    uint64 `json:"misses" metric:"cache_misses" help:"Texts that were not in the cache, shared calls included."`
	Shared    uint64 `json:"shared" metric:"calls_shared" help:"Texts whose call was already under way for another request."`
	Evictions uint64 `json:"evictions" metric:"cache_evictions" help:"Texts evicted from the cache."`
	Entries   int    `json:"entries" metric:"cache_entries" help:"Texts in the cache."`
	Bytes     int64  `json:"bytes" metric:"cache_bytes" help:"Bytes of the cache."`

	Renders   uint64 `json:"renders" metric:"calls_render" help:"Calls to render routes."`
	Tokenizes uint64 `json:"tokenizes" metric:"calls_tokenize" help:"Calls to /tokenize."`
	Hedges    uint64 `json:"hedges" metric:"calls_hedged" help:"Calls to a second server after the first failed or was slow."`
	Running   int    `json:"running" metric:"calls_running" help:"Calls under way."`

	NoServer  uint64 `json:"no_server" metric:"failures_no_server" help:"Texts that no server could be asked for."`
	Busy      uint64 `json:"busy" metric:"failures_busy" help:"Texts given up because too many calls were under way."`
	Connect   uint64 `json:"connect" metric:"failures_connect" help:"Calls without an answer: refused, reset or cut off."`
	Timeout   uint64 `json:"timeout" metric:"failures_timeout" help:"Calls without an answer in time."`
	Refused   uint64 `json:"refused" metric:"failures_refused" help:"Calls answered with a status of 400 to 499."`
	NoRender  uint64 `json:"no_render" metric:"failures_no_render" help:"Calls to a render route that the server does not have."`
	Status    uint64 `json:"status" metric:"failures_status" help:"Calls answered with another status than 200 or 400 to 499."`
	BadAnswer uint64 `json:"bad_answer" metric:"failures_bad_answer" help:"Calls whose answer was no list of token ids or too large."`
}

// counters are the counters of a Source.
type counters struct {
	given, exact, approximate, none atomic.Uint64
	hits, misses, shared            atomic.Uint64
	renders, tokenizes, hedges      atomic.Uint64
	running                         atomic.Int64
	noServer, busy                  atomic.Uint64
	connect, timeout, refused       atomic.Uint64
	noRender, status, badAnswer     atomic.Uint64
}

// Stats returns the counters of the Source.
func (s *Source) Stats() Stats {
	c := &s.count
	entries, bytes, evicted := s.cache.size()
	return Stats{
		Given: c.given.Load(), Exact: c.exact.Load(), Approximate: c.approximate.Load(), None: c.none.Load(),
		Hits: c.hits.Load(), Misses: c.misses.Load(), Shared: c.shared.Load(),
		Evictions: evicted, Entries: entries, Bytes: bytes,
		Renders: c.renders.Load(), Tokenizes: c.tokenizes.Load(), Hedges: c.hedges.Load(), Running: int(c.running.Load()),
		NoServer: c.noServer.Load(), Busy: c.busy.Load(), Connect: c.connect.Load(), Timeout: c.timeout.Load(),
		Refused: c.refused.Load(), NoRender: c.noRender.Load(), Status: c.status.Load(), BadAnswer: c.badAnswer.Load(),
	}
}
