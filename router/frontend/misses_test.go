package frontend_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// missYard is a door before two worker servers that share pool 77. Their events are those of the test.
type missYard struct {
	*bench
	transport *sourcetest.Transport
	one, two  *sourcetest.Publisher
	pool      *sourcetest.Publisher
	guessed   atomic.Bool // the tokens of prompts are approximate
	// computes is what happens while a worker computes a prompt. It returns the cached tokens and
	// the length of the prompt as the worker reports them.
	computes func() (cached, prompt int)
}

// promptBlocks is how many full blocks each prompt of these tests has. One token follows.
const promptBlocks, promptLen = 3, 3*blockSize + 1

func newMissYard(t *testing.T) *missYard {
	y := &missYard{transport: sourcetest.NewTransport()}
	answer := func(w http.ResponseWriter, r *http.Request) {
		cached, prompt := y.computes()
		answers(http.StatusOK, fmt.Sprintf(`{"choices":[{"text":"x"}],"usage":{"prompt_tokens":%d,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}}`,
			prompt, cached))(w, r)
	}
	r := routertest.RunOn(t, router.Options{Config: routertest.FirstOfEqual()}, y.transport)
	y.bench = &bench{t: t, router: r, directory: &directory{served: map[string]workers.Served{"m": {Model: "m"}, "silent": {Model: "silent"}}}}
	for id := range kv.WorkerID(3) {
		s := newServer(t, id+1, answer)
		y.directory.workers = append(y.directory.workers, &workers.Worker{ID: id + 1, URL: s.URL, Ranks: 1, State: workers.Ready, Facts: workers.Facts{BlockSize: blockSize}})
	}
	door, err := frontend.New(frontend.Options{Router: r, Workers: y.directory, Tokens: y})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(door.Handler())
	t.Cleanup(front.Close)
	y.door, y.url = door, front.URL
	y.one, y.two = y.publisher(0x11, sourcetest.WorkerOwner(1), 77), y.publisher(0x12, sourcetest.WorkerOwner(2), 77)
	y.pool = y.publisher(0x13, kv.PoolOwner(77), 0)
	return y
}

// Tokens implements frontend.Tokenizer.
func (y *missYard) Tokens(_ context.Context, _ string, r *openai.Request) (tokens.Prompt, error) {
	return tokens.Prompt{Tokens: r.Tokens, Exact: !y.guessed.Load()}, nil
}

// publisher makes a publisher that has announced itself.
func (y *missYard) publisher(id uint64, owner kv.Owner, pool uint64) *sourcetest.Publisher {
	p := y.transport.Publisher(id, owner, pool)
	y.say(p)
	return p
}

// say sends frames of a publisher, and returns when the router has handled them.
func (y *missYard) say(p *sourcetest.Publisher, frames ...source.Frame) {
	y.transport.Send(append(frames, p.Announce(), p.Announce())...)
}

// stores and removes say that a publisher's owner has, or no longer has, the blocks of a prompt.
func (y *missYard) stores(p *sourcetest.Publisher, t kv.Tier, prompt []uint32) {
	p.PublishedAt = uint64(time.Now().UnixMilli())
	y.say(p, p.Store(t, prompt[:promptBlocks*blockSize]))
}

func (y *missYard) removes(p *sourcetest.Publisher, t kv.Tier, prompt []uint32) {
	p.PublishedAt = uint64(time.Now().UnixMilli())
	y.say(p, source.Frame{Kind: source.FrameEvents, Data: p.Add(kvevent.Removed, t, prompt[:promptBlocks*blockSize], 0)})
}

// late has an event of a publisher come an hour after it was published.
func (y *missYard) late(p *sourcetest.Publisher, kind kvevent.Kind, prompt []uint32) {
	p.PublishedAt = uint64(time.Now().Add(-time.Hour).UnixMilli())
	y.say(p, source.Frame{Kind: source.FrameEvents, Data: p.Add(kind, kv.TierDevice, prompt[:promptBlocks*blockSize], 0)})
}

// asks sends a prompt to the door under an id, to the worker pinned unless it is 0. computed happens
// while the worker computes; the worker then reports that many cached tokens.
func (y *missYard) asks(model, id string, prompt []uint32, pinned int, cached int, computed func()) {
	y.computes = func() (int, int) {
		computed()
		return cached, len(prompt)
	}
	y.send(model, id, prompt, pinned)
}

func (y *missYard) send(model, id string, prompt []uint32, pinned int) {
	y.t.Helper()
	headers := []string{"X-Request-Id", id}
	if pinned != 0 {
		headers = append(headers, "X-Blockyard-Pin-Worker", fmt.Sprintf("%d/0", pinned))
	}
	body := fmt.Sprintf(`{"model":%q,"prompt":%s,"max_tokens":2}`, model, routertest.TokensJSON(prompt))
	if resp, text := y.post("/v1/completions", body, headers...); resp.StatusCode != http.StatusOK {
		y.t.Fatalf("status %d: %s", resp.StatusCode, text)
	}
}

// nothing happens.
func nothing() {}

// injected is one cause of misses. inject has it once, for a prompt that no other one shares a block
// with. want is the first part of the report, or the difference where part is false.
type injected struct {
	name   string
	inject func(y *missYard, id string, prompt []uint32)
	part   bool
	want   miss.Part
}

func injectedCauses() []injected {
	one, two, pool := sourcetest.WorkerOwner(1), sourcetest.WorkerOwner(2), kv.PoolOwner(77)
	const all = promptBlocks * blockSize
	return []injected{
		{"new content", func(y *missYard, id string, p []uint32) {
			y.asks("m", id, p, 1, 0, nothing)
		}, true, miss.Part{Cause: miss.NewContent, Tokens: all}},
		{"the last block", func(y *missYard, id string, p []uint32) {
			y.stores(y.one, kv.TierDevice, p)
			y.asks("m", id, p, 1, all, nothing)
		}, true, miss.Part{Cause: miss.LastBlock, Tokens: promptLen - all}},
		{"routed elsewhere for load", func(y *missYard, id string, p []uint32) {
			y.stores(y.two, kv.TierDevice, p)
			m, err := y.router.Model("m")
			if err != nil {
				y.t.Fatal(err)
			}
			load := &router.Request{ID: "load", Tokens: sourcetest.Tokens(slices.Repeat([]uint32{9}, 500)...)}
			if err := m.Decide().AddRequest(load, two.Worker(), 0); err != nil {
				y.t.Fatal(err)
			}
			y.asks("m", id, p, 0, 0, nothing)
			m.Decide().Free("load")
		}, true, miss.Part{Cause: miss.Elsewhere, Tokens: all, Owner: two}},
		{"evicted before the decision", func(y *missYard, id string, p []uint32) {
			y.stores(y.pool, kv.TierDisk, p)
			y.removes(y.pool, kv.TierDisk, p)
			y.asks("m", id, p, 1, 0, nothing)
		}, true, miss.Part{Cause: miss.Evicted, Tokens: all, Owner: pool, Tier: kv.TierDisk}},
		{"evicted after the decision", func(y *missYard, id string, p []uint32) {
			y.stores(y.one, kv.TierDevice, p)
			y.asks("m", id, p, 1, 0, func() { y.removes(y.one, kv.TierDevice, p) })
		}, true, miss.Part{Cause: miss.Evicted, Tokens: all, Owner: one}},
		{"tier too slow", func(y *missYard, id string, p []uint32) {
			y.stores(y.pool, kv.TierHost, p)
			y.asks("m", id, p, 1, 0, nothing)
		}, true, miss.Part{Cause: miss.TierSlow, Tokens: all, Owner: pool, Tier: kv.TierHost}},
		{"index behind with a removal", func(y *missYard, id string, p []uint32) {
			y.stores(y.one, kv.TierDevice, p)
			y.asks("m", id, p, 1, 0, func() { y.late(y.one, kvevent.Removed, p) })
		}, true, miss.Part{Cause: miss.IndexBehind, Tokens: all, Owner: one}},
		{"index behind with a store elsewhere", func(y *missYard, id string, p []uint32) {
			y.stores(y.two, kv.TierDevice, sourcetest.Tokens(1, 2, 3)) // the pace of worker 2
			y.asks("m", id, p, 1, 0, func() { y.late(y.two, kvevent.Stored, p) })
		}, true, miss.Part{Cause: miss.IndexBehind, Tokens: all, Owner: two}},
		{"index behind with a store", func(y *missYard, id string, p []uint32) {
			y.stores(y.one, kv.TierDevice, sourcetest.Tokens(1, 2, 3))
			y.asks("m", id, p, 1, all, func() { y.late(y.one, kvevent.Stored, p) })
		}, false, miss.Part{Cause: miss.IndexBehind, Tokens: all, Owner: one}},
		{"stored meanwhile", func(y *missYard, id string, p []uint32) {
			y.asks("m", id, p, 1, all, func() { y.stores(y.one, kv.TierDevice, p) })
		}, false, miss.Part{Cause: miss.StoredMeanwhile, Tokens: all, Owner: one}},
		{"hash differs", func(y *missYard, id string, p []uint32) {
			y.stores(y.one, kv.TierDevice, p)
			y.asks("m", id, p, 1, 0, nothing)
		}, true, miss.Part{Cause: miss.TokensDiffer, Tokens: all, Owner: one}},
		{"tokens differ", func(y *missYard, id string, p []uint32) {
			y.stores(y.one, kv.TierDevice, p)
			y.computes = func() (int, int) { return blockSize, len(p) + 1 }
			y.send("m", id, p, 1)
		}, true, miss.Part{Cause: miss.TokensDiffer, Tokens: all - blockSize}},
		{"cleared after the decision", func(y *missYard, id string, p []uint32) {
			y.stores(y.one, kv.TierDevice, p)
			y.asks("m", id, p, 1, 0, func() { y.say(y.one, y.one.Clear()) })
		}, true, miss.Part{Cause: miss.Restarted, Tokens: all, Owner: one}},
		{"cleared before the decision", func(y *missYard, id string, p []uint32) {
			y.stores(y.two, kv.TierDevice, p)
			y.say(y.two, y.two.Clear())
			y.asks("m", id, p, 1, 0, nothing)
		}, true, miss.Part{Cause: miss.Restarted, Tokens: all, Owner: two}},
		{"worker left", func(y *missYard, id string, p []uint32) {
			left := y.publisher(uint64(p[0])+1000, sourcetest.WorkerOwner(3), 0)
			y.stores(left, kv.TierDevice, p)
			y.transport.Send(left.Goodbye())
			y.say(y.one)
			y.asks("m", id, p, 1, 0, nothing)
		}, true, miss.Part{Cause: miss.Restarted, Tokens: all, Owner: sourcetest.WorkerOwner(3)}},
		{"approximate tokens", func(y *missYard, id string, p []uint32) {
			y.guessed.Store(true)
			y.stores(y.one, kv.TierDevice, p)
			y.asks("m", id, p, 1, 0, nothing)
		}, true, miss.Part{Cause: miss.ApproximateTokens, Tokens: promptLen}},
		{"predicted cache", func(y *missYard, id string, p []uint32) {
			silent := y.transport.Publisher(0x14, sourcetest.WorkerOwner(3), 0).Of("silent", blockSize)
			silent.Meta.Card.Silent = true
			y.say(silent)
			y.asks("silent", id+" first", p, 0, 0, nothing)
			y.asks("silent", id, p, 0, 0, nothing)
		}, true, miss.Part{Cause: miss.PredictedCache, Tokens: all}},
		{"lost events", func(y *missYard, id string, p []uint32) {
			y.stores(y.one, kv.TierDevice, p)
			y.transport.HoldQueries(true)
			y.one.Add(kvevent.Removed, kv.TierDevice, p[:promptBlocks*blockSize], 0) // nobody gets it
			y.say(y.one)
			y.asks("m", id, p, 1, 0, nothing)
			y.transport.HoldQueries(false)
			m, err := y.router.Model("m")
			if err != nil {
				y.t.Fatal(err)
			}
			for m.Quality() != feed.Exact {
				runtime.Gosched()
			}
		}, true, miss.Part{Cause: miss.LostEvents, Tokens: all}},
		{"not handed over", func(y *missYard, id string, p []uint32) {
			for i, role := range []workers.Role{workers.RolePrefill, workers.RoleDecode, workers.RoleDecode} {
				w := y.directory.workers[i]
				w.Role, w.Pool, w.Facts.Engine = role, 77, workers.EngineVLLM
			}
			y.asks("m", id, p, 0, 0, nothing)
		}, true, miss.Part{Cause: miss.HandOver, Tokens: promptLen}},
	}
}

// Each cause of a miss is injected a hundred times, and named each time, with owner and tier.
func TestEveryMissIsNamed(t *testing.T) {
	const times = 100
	var named, wanted atomic.Int64
	all := injectedCauses()
	t.Run("causes", func(t *testing.T) {
		for _, c := range all {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				wanted.Add(times)
				named.Add(int64(c.run(t, times)))
			})
		}
	})
	fmt.Printf("misses: causes=%d named=%d/%d\n", len(all), named.Load(), wanted.Load())
	if named.Load() != int64(len(all)*times) {
		t.Errorf("%d of %d misses have their cause", named.Load(), len(all)*times)
	}
}

// A worker whose server was not asked for its block size yet has that of its events, so that its misses have their causes.
func TestMissesOfAWorkerThatWasNotAskedYet(t *testing.T) {
	y := newMissYard(t)
	y.directory.workers[0].Facts.BlockSize = 0
	prompt := append(sourcetest.Tokens(10, 11, 12), 7)
	y.say(y.one, y.one.Store(kv.TierDevice, prompt[:2*blockSize]))
	y.asks("m", "r", prompt, 1, 2*blockSize, nothing)
	var found []miss.Entry
	sourcetest.Eventually(t, "the request is explained", func() bool {
		found = y.router.Misses().Recent(1)
		return len(found) == 1
	})
	if e := found[0]; e.Predicted != 2*blockSize || len(e.Parts) != 2 || e.Parts[0] != (miss.Part{Cause: miss.NewContent, Tokens: blockSize}) {
		t.Errorf("%+v", e)
	}
}

// countedByCause returns the tokens that a counter of the front door has for each cause, those in one direction unless
// it is empty.
func (y *missYard) countedByCause(name, direction string) map[string]int {
	y.t.Helper()
	scraped := httptest.NewRecorder()
	y.router.Metrics().Handler().ServeHTTP(scraped, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if direction != "" {
		direction = `direction="` + direction + `",`
	}
	series := regexp.MustCompile(`(?m)^blockyard_frontend_` + name + `\{cause="(\w+)",` + direction + `model="[^"]*",worker="[^"]*"\} (\S+)$`)
	counted := make(map[string]int)
	for _, m := range series.FindAllStringSubmatch(scraped.Body.String(), -1) {
		tokens, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			y.t.Fatal(err)
		}
		counted[m[1]] += int(tokens)
	}
	return counted
}

// countersAgree compares the counters with the reports of all requests and with what was injected.
func (c *injected) countersAgree(t *testing.T, y *missYard, times int) {
	var missed, more, wantMissed, wantMore map[string]int
	sourcetest.Eventually(t, "the counters have what the reports say", func() bool {
		wantMissed, wantMore = make(map[string]int), make(map[string]int)
		for _, e := range y.router.Misses().Recent(2*times + 1) {
			for _, p := range e.Parts {
				wantMissed[p.Cause.String()] += p.Tokens
			}
			if e.Difference.Tokens > 0 {
				wantMore[e.Difference.Cause.String()] += e.Difference.Tokens
			}
		}
		missed, more = y.countedByCause("missed_tokens_total", ""), y.countedByCause("cached_tokens_difference_total", "more")
		return maps.Equal(missed, wantMissed) && maps.Equal(more, wantMore)
	})
	counted := more
	if c.part {
		counted = missed
	}
	if got, least := counted[c.want.Cause.String()], times*c.want.Tokens; got < least {
		t.Errorf("counted %d tokens as %s, %d were injected: missed %v, delivered and not predicted %v", got, c.want.Cause, least, missed, more)
	}
}

// run injects a cause, and returns how many reports name it. The counters must have the injected tokens too.
func (c *injected) run(t *testing.T, times int) (named int) {
	y := newMissYard(t)
	ids := make(map[string]bool)
	for i := range uint32(times) {
		id := fmt.Sprint("r", i)
		ids[id] = true
		c.inject(y, id, append(sourcetest.Tokens(10*i+10, 10*i+11, 10*i+12), 7))
	}
	found := make(map[string]miss.Entry)
	sourcetest.Eventually(t, "every request is explained", func() bool {
		for _, e := range y.router.Misses().Recent(2 * times) {
			if ids[e.Request] {
				found[e.Request] = e
			}
		}
		return len(found) == times
	})
	c.countersAgree(t, y, times)
	for id, e := range found {
		got := e.Difference
		if c.part {
			got = e.Parts[0]
		}
		sum := e.Delivered
		for _, p := range e.Parts {
			sum += p.Tokens
		}
		late := c.want.Cause != miss.IndexBehind || got.Behind > time.Minute
		got.Ago, got.Behind = 0, 0
		switch {
		case got != c.want || !late:
			t.Errorf("%s: %+v, want %+v", id, e.Report, c.want)
		case sum != e.Tokens:
			t.Errorf("%s: delivered tokens and parts add up to %d of %d tokens: %+v", id, sum, e.Tokens, e)
		default:
			named++
		}
	}
	return named
}
