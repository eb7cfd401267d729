package router

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/config"
)

// later routes a request that may wait; its answer is "ID STATUS".
func (b *bench) later(h http.Handler, id, body string) <-chan string {
	answer := make(chan string, 1)
	go func() {
		w := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(b.t.Context(), "POST", "/v1/route", strings.NewReader(body))
		req.Header.Set(RequestIDHeader, id)
		h.ServeHTTP(w, req)
		answer <- fmt.Sprint(id, " ", w.Code)
	}()
	synctest.Wait()
	return answer
}

func halfAStep() *config.Config {
	return configured(func(c *config.Config) {
		half := 0.5
		c.RouterQueueThreshold, c.FirstOfEqual = &half, true
	})
}

// Requests wait while more than the threshold's share of a step is pending, of a step as
// the worker announced it; one that announces a larger step takes them.
func TestQueueGoesByTheAnnouncedStep(t *testing.T) {
	onBench(t, Options{Config: halfAStep()}, func(b *bench) {
		p := b.publisher(0x11, workerOwner(1), 0)
		p.meta.Card.MaxBatchedTokens = 4 * testBlockSize
		b.send(p.announce())
		h := b.router.Handler()
		if got := <-b.later(h, "half", newBody("", 1, 2)); got != "half 200" {
			t.Error(got)
		}
		if got := <-b.later(h, "more", newBody("", 3)); got != "more 200" {
			t.Errorf("at the threshold and not above: %s", got)
		}
		waits := b.later(h, "waits", newBody("", 4))
		if n := b.router.Stats().Requests.Queue.Pending; n != 1 {
			t.Fatalf("%d wait behind three blocks of a step of four", n)
		}
		p.meta.Card.MaxBatchedTokens = 8 * testBlockSize
		b.send(p.announce())
		if got := <-waits; got != "waits 200" {
			t.Error(got)
		}
	})
}

// The same for a worker that registers.
func TestQueueGoesByTheRegisteredStep(t *testing.T) {
	onRegistryWith(t, Options{Config: halfAStep()}, RegistryOptions{}, func(b *bench, r *Registry) {
		h := b.router.Handler()
		call(t, b.router.ControlHandler(), "POST", "/v1/workers", "", fmt.Sprintf(`{"worker_id":5,"model":"m","block_size":%d,"max_num_batched_tokens":%d}`, testBlockSize, testBlockSize))
		b.pass(time.Second)
		b.route(h, "r1", newBody("", 1))
		waits := b.later(h, "r2", newBody("", 2))
		if n := b.router.Stats().Requests.Queue.Pending; n != 1 {
			t.Errorf("%d wait", n)
		}
		b.route(h, "r1", `{"method":"mark_prefill"}`)
		if got := <-waits; got != "r2 200" {
			t.Error(got)
		}
	})
}

// Labels that a worker announces select it where they are required, and weigh where they
// are preferred; a worker that announces others is another one for that.
func TestAnnouncedTaintsSelect(t *testing.T) {
	onBench(t, Options{Config: firstOfEqual()}, func(b *bench) {
		p1, p2 := b.publisher(0x11, workerOwner(1), 0), b.publisher(0x12, workerOwner(2), 0)
		p2.meta.Card.Taints = "gpu=b,zone=1"
		b.send(p1.announce(), p2.announce())
		h := b.router.Handler()
		choose := func(constraints, want string) {
			t.Helper()
			_, got := b.route(h, "r", newBody(`,"routing_constraints":`+constraints, 1, 9))
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s", constraints, got, want)
			}
			b.router.Free("r")
		}
		choose(`{"required_taints":[]}`, `"worker_id":1`)
		choose(`{"required_taints":["zone=1","gpu=b"]}`, `"worker_id":2`)
		choose(`{"preferred_taints":{"gpu=b":0.5}}`, `"worker_id":2`)
		choose(`{"preferred_taints":{"gpu=b":-0.5}}`, `"worker_id":1`)
		choose(`{"required_taints":["gpu=a"]}`, `taints`)
		p1.meta.Card.Taints, p2.meta.Card.Taints = "gpu=a", ""
		b.send(p1.announce(), p2.announce())
		choose(`{"required_taints":["gpu=a"]}`, `"worker_id":1`)
		choose(`{"required_taints":["gpu=b"]}`, `taints`)
	})
}

// What is registered of a worker, over HTTP or in the file, is shown, and a value out of
// range is named.
func TestRegisteredCards(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workers.json")
	writeFile(t, file, `{"workers":[{"worker_id":9,"model":"m","block_size":4,"device_blocks":70,"taints":["b","a"]}]}`)
	onRegistryWith(t, Options{}, RegistryOptions{File: file}, func(b *bench, r *Registry) {
		h := b.router.Handler()
		body := `{"worker_id":5,"model":"m","block_size":4,`
		if got := text(t, call(t, b.router.ControlHandler(), "POST", "/v1/workers", "", body+`"total_kv_blocks":100,"max_num_batched_tokens":8192,"taints":["x","x"]}`)); !strings.Contains(got, `"worker_id":5`) {
			t.Error(got)
		}
		b.pass(time.Second)
		var workers []workerAnswer
		if err := json.Unmarshal([]byte(text(t, call(t, h, "GET", "/v1/workers", "", ""))), &workers); err != nil || len(workers) != 2 {
			t.Fatalf("%+v, %v", workers, err)
		}
		if w := workers[0]; w.DeviceBlocks != 100 || w.MaxBatchedTokens != 8192 || fmt.Sprint(w.Taints) != "[x]" {
			t.Errorf("over HTTP: %+v", w)
		}
		if w := workers[1]; w.DeviceBlocks != 70 || w.MaxBatchedTokens != 0 || fmt.Sprint(w.Taints) != "[a b]" {
			t.Errorf("of the file: %+v", w)
		}
		for fields, want := range map[string]string{
			`"device_blocks":9007199254740992}`:          "device_blocks: 9007199254740992 is not in 0..9007199254740991",
			`"total_kv_blocks":9007199254740992}`:        "total_kv_blocks: 9007199254740992 is not in 0..9007199254740991",
			`"device_blocks":1,"total_kv_blocks":2}`:     "total_kv_blocks: 2 contradicts device_blocks, which is 1",
			`"max_num_batched_tokens":9007199254740992}`: "max_num_batched_tokens: 9007199254740992 is not in 0..9007199254740991",
			`"taints":["a",""]}`:                         "taints[1]: 0 bytes, want 1 to 128",
			`"taints":["a,b"]}`:                          `taints[0]: \"a,b\"`,
			`"taints":"a"}`:                              "taints",
		} {
			answer := call(t, b.router.ControlHandler(), "POST", "/v1/workers", "", body+fields)
			if got := text(t, answer); answer.StatusCode != http.StatusBadRequest || !strings.Contains(got, want) {
				t.Errorf("%s: %d %s, want %s", fields, answer.StatusCode, got, want)
			}
		}
	})
}

// A request of which nothing is heard, or whose worker is gone, is off the estimator's
// books when it is off the account's.
func TestEstimatorForgetsWhatTheAccountForgets(t *testing.T) {
	c := configured(func(c *config.Config) { c.Score, c.ActiveRequestExpirySecs = config.ScoreCost, 10 })
	onBench(t, Options{Config: c}, func(b *bench) {
		p1, p2 := b.publisher(0x11, workerOwner(1), 0), b.publisher(0x12, workerOwner(2), 0)
		p2.meta.Card.Incarnation = 1
		b.send(p1.announce(), p2.announce())
		h := b.router.Handler()
		expect := func(when string, followed int, abandoned uint64) {
			t.Helper()
			if s := onlyModel(t, b.router.models).estimate.Stats(); s.Requests != followed || s.Abandoned != abandoned || s.Expired != 0 {
				t.Errorf("%s: %+v, want %d followed and %d abandoned", when, s, followed, abandoned)
			}
		}
		b.route(h, "silent", newBody(`,"pinned_worker":{"worker_id":1}`, 1))
		expect("one is sent", 1, 0)
		for range 11 {
			b.pass(time.Second)
			b.send(p1.announce(), p2.announce())
		}
		expect("it is silent", 0, 1)
		b.route(h, "lost", newBody(`,"pinned_worker":{"worker_id":2}`, 1))
		expect("another one is sent", 1, 1)
		restarted := b.publisher(0x13, workerOwner(2), 0)
		restarted.meta.Card.Incarnation = 2
		b.send(p2.goodbye(), restarted.announce())
		expect("its worker starts anew", 0, 2)
		if s := b.router.Stats().Requests.Load; s.Requests != 0 || s.Expired != 1 || s.Abandoned != 1 {
			t.Errorf("account %+v", s)
		}
	})
}

// The scheduler is told when a worker that it knows describes itself in another way, and
// only then.
func TestCardTableTellsChanges(t *testing.T) {
	cards, w := newCardTable(), workerOwner(1).Worker()
	first := kvevent.ModelCard{DeviceBlocks: 3, MaxBatchedTokens: 4, Taints: "a,b"}
	if cards.set(w, &first) || cards.set(w, &first) {
		t.Error("a new worker, or the same card again, is a change")
	}
	if c := cards.of(w); c.TotalBlocks != 3 || c.MaxBatchedTokens != 4 || fmt.Sprint(c.Taints) != "[a b]" {
		t.Errorf("%+v", c)
	}
	second := first
	second.Taints = "a"
	if !cards.set(w, &second) {
		t.Error("other taints are no change")
	}
	cards.remove(w)
	if c := cards.of(w); c.TotalBlocks != 0 || c.Taints != nil {
		t.Errorf("of a worker that is gone: %+v", c)
	}
}

// A worker's card is there before the worker is a member, so that no decision finds the
// worker without it.
func TestCardsComeBeforeMembers(t *testing.T) {
	set := freshFeeds(t)
	const workers = 300
	join := func(id uint64) {
		a := kvevent.Announcement{PublisherID: id, Owner: workerOwner(id), Model: "m", BlockSize: 16,
			Health: kvevent.HealthExact, Card: kvevent.ModelCard{MaxBatchedTokens: 8}}
		set.frame(Frame{Kind: FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}, time.Unix(1000, 0))
	}
	join(1)
	m := onlyModel(t, set.models)
	var looking sync.WaitGroup
	looking.Go(func() {
		for seen := 0; seen < workers; {
			list := m.index.Members().List
			for _, member := range list[seen:] {
				if m.cards.of(member.Worker).MaxBatchedTokens == 0 {
					t.Errorf("worker %s is a member without a card", member.Worker)
				}
			}
			seen = len(list)
			runtime.Gosched()
		}
	})
	for id := range uint64(workers - 1) {
		join(id + 2)
	}
	looking.Wait()
}

// The setting is_eagle has blocks hashed over pairs of tokens: the last of a prompt's two
// blocks lacks the token behind it, and is no block that a worker could have.
func TestEagleSettingReachesTheHashes(t *testing.T) {
	for eagle, want := range map[bool]string{false: `"overlap_blocks":2`, true: `"overlap_blocks":1`} {
		c := configured(func(c *config.Config) { c.UseKVEvents, c.FirstOfEqual, c.IsEagle = false, true, eagle })
		onBench(t, Options{Config: c}, func(b *bench) {
			twoWorkers(b)
			h := b.router.Handler()
			b.route(h, "r", newBody("", 1, 2))
			b.route(h, "r", `{"method":"mark_free"}`)
			if _, got := b.route(h, "r", newBody("", 1, 2)); !strings.Contains(got, want) {
				t.Errorf("eagle %v: %s, want %s", eagle, got, want)
			}
		})
	}
}
