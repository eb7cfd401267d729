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
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// later routes a request that may wait; its answer is "ID STATUS".
func (b *Bench) later(h http.Handler, id, body string) <-chan string {
	answer := make(chan string, 1)
	go func() {
		w := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(b.T.Context(), "POST", "/v1/route", strings.NewReader(body))
		req.Header.Set(RequestIDHeader, id)
		h.ServeHTTP(w, req)
		answer <- fmt.Sprint(id, " ", w.Code)
	}()
	synctest.Wait()
	return answer
}

func halfAStep() *config.Config {
	return Configured(func(c *config.Config) {
		half := 0.5
		c.RouterQueueThreshold, c.FirstOfEqual = &half, true
	})
}

// Requests wait while more than the threshold's share of a step is pending, of a step as
// the worker announced it; one that announces a larger step takes them.
func TestQueueGoesByTheAnnouncedStep(t *testing.T) {
	OnBench(t, Options{Config: halfAStep()}, func(b *Bench) {
		p := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0)
		p.Meta.Card.MaxBatchedTokens = 4 * sourcetest.BlockSize
		b.Send(p.Announce())
		h := NewAPI(b.Router, APIOptions{}).Handler()
		if got := <-b.later(h, "half", NewBody("", 1, 2)); got != "half 200" {
			t.Error(got)
		}
		if got := <-b.later(h, "more", NewBody("", 3)); got != "more 200" {
			t.Errorf("at the threshold and not above: %s", got)
		}
		waits := b.later(h, "waits", NewBody("", 4))
		if n := b.Router.Stats().Requests.Queue.Pending; n != 1 {
			t.Fatalf("%d wait behind three blocks of a step of four", n)
		}
		p.Meta.Card.MaxBatchedTokens = 8 * sourcetest.BlockSize
		b.Send(p.Announce())
		if got := <-waits; got != "waits 200" {
			t.Error(got)
		}
	})
}

// The same for a worker that registers.
func TestQueueGoesByTheRegisteredStep(t *testing.T) {
	OnRegistryWith(t, Options{Config: halfAStep()}, registry.Options{}, func(b *Bench, r *registry.Source) {
		h := NewAPI(b.Router, APIOptions{}).Handler()
		Call(t, NewAPI(b.Router, APIOptions{}).ControlHandler(), "POST", "/v1/workers", "", fmt.Sprintf(`{"worker_id":5,"model":"m","block_size":%d,"max_num_batched_tokens":%d}`, sourcetest.BlockSize, sourcetest.BlockSize))
		b.Pass(time.Second)
		b.Route(h, "r1", NewBody("", 1))
		waits := b.later(h, "r2", NewBody("", 2))
		if n := b.Router.Stats().Requests.Queue.Pending; n != 1 {
			t.Errorf("%d wait", n)
		}
		b.Route(h, "r1", `{"method":"mark_prefill"}`)
		if got := <-waits; got != "r2 200" {
			t.Error(got)
		}
	})
}

// Labels that a worker announces select it where they are required, and weigh where they
// are preferred; a worker that announces others is another one for that.
func TestAnnouncedTaintsSelect(t *testing.T) {
	OnBench(t, Options{Config: FirstOfEqual()}, func(b *Bench) {
		p1, p2 := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0), b.Publisher(0x12, sourcetest.WorkerOwner(2), 0)
		p2.Meta.Card.Taints = "gpu=b,zone=1"
		b.Send(p1.Announce(), p2.Announce())
		h := NewAPI(b.Router, APIOptions{}).Handler()
		choose := func(constraints, want string) {
			t.Helper()
			_, got := b.Route(h, "r", NewBody(`,"routing_constraints":`+constraints, 1, 9))
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s", constraints, got, want)
			}
			b.Router.Free("", "r")
		}
		choose(`{"required_taints":[]}`, `"worker_id":1`)
		choose(`{"required_taints":["zone=1","gpu=b"]}`, `"worker_id":2`)
		choose(`{"preferred_taints":{"gpu=b":0.5}}`, `"worker_id":2`)
		choose(`{"preferred_taints":{"gpu=b":-0.5}}`, `"worker_id":1`)
		choose(`{"required_taints":["gpu=a"]}`, `taints`)
		p1.Meta.Card.Taints, p2.Meta.Card.Taints = "gpu=a", ""
		b.Send(p1.Announce(), p2.Announce())
		choose(`{"required_taints":["gpu=a"]}`, `"worker_id":1`)
		choose(`{"required_taints":["gpu=b"]}`, `taints`)
	})
}

// What is registered of a worker, over HTTP or in the file, is shown, and a value out of
// range is named.
func TestRegisteredCards(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workers.json")
	WriteFile(t, file, `{"workers":[{"worker_id":9,"model":"m","block_size":4,"device_blocks":70,"taints":["b","a"]}]}`)
	OnRegistry(t, registry.Options{File: file}, func(b *Bench, r *registry.Source) {
		h := NewAPI(b.Router, APIOptions{}).Handler()
		body := `{"worker_id":5,"model":"m","block_size":4,`
		if got := Text(t, Call(t, NewAPI(b.Router, APIOptions{}).ControlHandler(), "POST", "/v1/workers", "", body+`"total_kv_blocks":100,"max_num_batched_tokens":8192,"taints":["x","x"]}`)); !strings.Contains(got, `"worker_id":5`) {
			t.Error(got)
		}
		b.Pass(time.Second)
		var workers []workerAnswer
		if err := json.Unmarshal([]byte(Text(t, Call(t, h, "GET", "/v1/workers", "", ""))), &workers); err != nil || len(workers) != 2 {
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
			answer := Call(t, NewAPI(b.Router, APIOptions{}).ControlHandler(), "POST", "/v1/workers", "", body+fields)
			if got := Text(t, answer); answer.StatusCode != http.StatusBadRequest || !strings.Contains(got, want) {
				t.Errorf("%s: %d %s, want %s", fields, answer.StatusCode, got, want)
			}
		}
	})
}

// A request of which nothing is heard, or whose worker is gone, is off the estimator's
// books when it is off the account's.
func TestEstimatorForgetsWhatTheAccountForgets(t *testing.T) {
	c := Configured(func(c *config.Config) { c.Score, c.ActiveRequestExpirySecs = config.ScoreCost, 10 })
	OnBench(t, Options{Config: c}, func(b *Bench) {
		p1, p2 := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0), b.Publisher(0x12, sourcetest.WorkerOwner(2), 0)
		p2.Meta.Card.Incarnation = 1
		b.Send(p1.Announce(), p2.Announce())
		h := NewAPI(b.Router, APIOptions{}).Handler()
		expect := func(when string, followed int, abandoned uint64) {
			t.Helper()
			if s := onlyModel(t, b.Router.models).estimate.Stats(); s.Requests != followed || s.Abandoned != abandoned || s.Expired != 0 {
				t.Errorf("%s: %+v, want %d followed and %d abandoned", when, s, followed, abandoned)
			}
		}
		b.Route(h, "silent", NewBody(`,"pinned_worker":{"worker_id":1}`, 1))
		expect("one is sent", 1, 0)
		for range 11 {
			b.Pass(time.Second)
			b.Send(p1.Announce(), p2.Announce())
		}
		expect("it is silent", 0, 1)
		b.Route(h, "lost", NewBody(`,"pinned_worker":{"worker_id":2}`, 1))
		expect("another one is sent", 1, 1)
		restarted := b.Publisher(0x13, sourcetest.WorkerOwner(2), 0)
		restarted.Meta.Card.Incarnation = 2
		b.Send(p2.Goodbye(), restarted.Announce())
		expect("its worker starts anew", 0, 2)
		if s := b.Router.Stats().Requests.Load; s.Requests != 0 || s.Expired != 1 || s.Abandoned != 1 {
			t.Errorf("account %+v", s)
		}
	})
}

// The scheduler is told when a worker that it knows describes itself in another way, and
// only then.
func TestCardTableTellsChanges(t *testing.T) {
	cards, w := newCardTable(), sourcetest.WorkerOwner(1).Worker()
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
	r, err := New(Options{}, sourcetest.NewTransport())
	if err != nil {
		t.Fatal(err)
	}
	const workers = 300
	join := func(id uint64) {
		a := kvevent.Announcement{PublisherID: id, Owner: sourcetest.WorkerOwner(id), Model: "m", BlockSize: 16,
			Health: kvevent.HealthExact, Card: kvevent.ModelCard{MaxBatchedTokens: 8}}
		r.feeds.Frame(source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}, time.Unix(1000, 0))
	}
	join(1)
	m := onlyModel(t, r.models)
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
		c := Configured(func(c *config.Config) { c.UseKVEvents, c.FirstOfEqual, c.IsEagle = false, true, eagle })
		OnBench(t, Options{Config: c}, func(b *Bench) {
			TwoWorkers(b)
			h := NewAPI(b.Router, APIOptions{}).Handler()
			b.Route(h, "r", NewBody("", 1, 2))
			b.Route(h, "r", `{"method":"mark_free"}`)
			if _, got := b.Route(h, "r", NewBody("", 1, 2)); !strings.Contains(got, want) {
				t.Errorf("eagle %v: %s, want %s", eagle, got, want)
			}
		})
	}
}
