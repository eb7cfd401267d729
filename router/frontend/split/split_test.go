package split_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/split"
)

func parse(t *testing.T, route openai.Route, body string) *openai.Request {
	t.Helper()
	r, err := openai.Parse(route, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What shows the prefill to the client, and what one worker stores, is not split.
func TestUnfit(t *testing.T) {
	for _, c := range []struct {
		route openai.Route
		body  string
		fit   bool
	}{
		{openai.Completions, `{"prompt":[1,2]}`, true},
		{openai.Completions, `{"prompt":[1,2],"logprobs":1,"n":2,"stream":true}`, true},
		{openai.Completions, `{"prompt":[1,2],"prompt_logprobs":0}`, false},
		{openai.Completions, `{"prompt":[1,2],"echo":true}`, false},
		{openai.Completions, `{"prompt":[1,2],"use_beam_search":true}`, false},
		{openai.Completions, `{"prompt":[1,2],"best_of":2}`, false},
		{openai.Completions, `{"prompt":[1,2],"max_tokens":1}`, false},
		{openai.Completions, `{"prompt":[[1],[2]]}`, false},
		{openai.Completions, `{"prompt":[1,2],"kv_transfer_params":{}}`, false},
		{openai.Chat, `{"messages":[{"role":"user","content":"a"}]}`, true},
		{openai.Messages, `{"messages":[{"role":"user","content":"a"}],"max_tokens":9}`, true},
		{openai.Responses, `{"input":"a","store":false}`, true},
		{openai.Responses, `{"input":"a"}`, false}, // stored by default
		{openai.Responses, `{"input":"a","store":false,"background":true}`, false},
		{openai.Responses, `{"input":"a","store":false,"previous_response_id":"r"}`, false},
		{openai.Embeddings, `{"input":"a"}`, false},
	} {
		if got := split.Unfit(parse(t, c.route, c.body)); (got == "") != c.fit {
			t.Errorf("%s %s: %q, want fit %v", c.route, c.body, got, c.fit)
		}
	}
}

// Short and mostly cached prompts stay whole.
func TestRule(t *testing.T) {
	bounds := &split.Conditional{Bounds: true, Tokens: 2048, Ratio: 0.7}
	for _, c := range []struct {
		rule           split.Rule
		prompt, cached int
		want           string
	}{
		{split.Rule{}, 1, 0, ""},
		{split.Rule{MinTokens: 256}, 255, 0, split.Short},
		{split.Rule{MinTokens: 256}, 256, 0, ""},
		{split.Rule{MinTokens: 256}, 9000, 8745, split.Short},
		{split.Rule{MinTokens: 256}, 9000, 8744, ""},
		{split.Rule{MinTokens: 1}, 10, 11, split.Short},
		// Dynamo's rule: few tokens and a small share.
		{split.Rule{Conditional: bounds}, 100, 0, ""},
		{split.Rule{Conditional: bounds}, 1000, 300, ""}, // 0.7
		{split.Rule{Conditional: bounds}, 1000, 301, split.Bounded},
		{split.Rule{Conditional: bounds}, 4096, 2048, ""},
		{split.Rule{Conditional: bounds}, 4096, 2049, split.Bounded},
		{split.Rule{Conditional: &split.Conditional{Tokens: 2048, Ratio: 0.7}}, 1000, 900, ""},
	} {
		if got := c.rule.Whole(c.prompt, c.cached); got != c.want {
			t.Errorf("%+v: %d tokens, %d cached: %q, want %q", c.rule, c.prompt, c.cached, got, c.want)
		}
	}
}

// A busy prefill worker is bypassed, unless decode workers are busy too.
func TestBypass(t *testing.T) {
	half, none := 0.5, (*float64)(nil)
	for _, c := range []struct {
		prefill, decode       *float64
		prefilling, decodings int
		batch                 int
		want                  bool
	}{
		{none, none, 1 << 20, 0, 100, false},
		{&half, none, 50, 0, 100, false},
		{&half, none, 51, 1 << 20, 100, true},
		{&half, &half, 51, 50, 100, true},
		{&half, &half, 51, 51, 100, false},
		{&half, &half, 1 << 20, 0, 0, false},
	} {
		rule := split.Rule{Conditional: &split.Conditional{PrefillBusy: c.prefill, DecodeBusy: c.decode}}
		got := rule.Bypass(split.Load{PrefillTokens: c.prefilling, Batch: c.batch}, split.Load{PrefillTokens: c.decodings, Batch: c.batch})
		if got != c.want {
			t.Errorf("%+v: %v, want %v", c, got, c.want)
		}
	}
	for _, rule := range []split.Rule{{MinTokens: -1}, {Conditional: &split.Conditional{Ratio: 1.1}}} {
		if rule.Validate() == nil {
			t.Errorf("%+v is valid", rule)
		}
	}
}

// The prefill worker computes one token of any route, and is asked for nothing else.
func TestPrefillBodies(t *testing.T) {
	for _, c := range []struct {
		route      openai.Route
		body, want string
	}{
		{
			openai.Completions, `{"prompt":[1],"max_tokens":9,"min_tokens":3,"n":4,"stream":true,"stream_options":{"include_usage":true},"logprobs":2,"seed":7}`,
			`{"prompt":[1],"max_tokens":1,"stream":false,"seed":7}`,
		},
		{
			openai.Chat, `{"messages":[],"max_completion_tokens":9,"logprobs":true,"top_logprobs":3}`,
			`{"messages":[],"max_tokens":1,"stream":false}`,
		},
		{
			openai.Messages, `{"messages":[],"max_tokens":9,"thinking":{"type":"enabled","budget_tokens":5}}`,
			`{"messages":[],"max_tokens":1,"thinking":{"type":"enabled","budget_tokens":5},"stream":false,"kv_transfer_params":{"do_remote_decode":true}}`,
		},
		{openai.Responses, `{"input":"a","max_output_tokens":9}`, `{"input":"a","max_output_tokens":1,"stream":false}`},
	} {
		edits := split.PrefillEdits(parse(t, c.route, c.body), split.Yard.PrefillParams(c.route, nil))
		if got, err := openai.Apply([]byte(c.body), edits...); err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v; want %s", c.route, got, err, c.want)
		}
	}
}

func TestParams(t *testing.T) {
	ids := []uint32{7, 8}
	for got, want := range map[string]string{
		string(split.Yard.PrefillParams(openai.Chat, nil)):       ``,
		string(split.Yard.PrefillParams(openai.Chat, ids)):       `{"prompt_token_ids":[7,8]}`,
		string(split.AwaitParams(3, 1500*time.Millisecond, nil)): `{"blockyard":{"await":3,"deadline_ms":1500}}`,
		string(split.AwaitParams(3, time.Second, ids)):           `{"blockyard":{"await":3,"deadline_ms":1000},"prompt_token_ids":[7,8]}`,
		string(split.Engines.PrefillParams(openai.Chat, ids)): `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,` +
			`"remote_block_ids":null,"remote_host":null,"remote_port":null,"prompt_token_ids":[7,8]}`,
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// The members of vLLM's answer go on as they are, unknown ones too.
func TestDecodeParams(t *testing.T) {
	const handed = `{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[[1,2]],"remote_port":5600,"new":{"x":1.0}}`
	got, err := split.DecodeParams([]byte(`{"choices":[],"kv_transfer_params":`+handed+`}`), nil)
	if err != nil || string(got) != handed {
		t.Errorf("%s, %v; want %s", got, err, handed)
	}
	const sorted = `{"do_remote_prefill":true,"new":{"x":1.0},"prompt_token_ids":[7],"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_port":5600}`
	if got, err = split.DecodeParams([]byte(`{"kv_transfer_params":`+handed+`}`), []uint32{7}); err != nil || string(got) != sorted {
		t.Errorf("%s, %v; want %s", got, err, sorted)
	}
	for _, answer := range []string{
		`{}`, `{"kv_transfer_params":null}`, `{"kv_transfer_params":{}}`, `{"kv_transfer_params":[1]}`,
		`{"kv_transfer_params":{"do_remote_prefill":false,"remote_engine_id":"e"}}`,
		`{"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":null}}`,
	} {
		if _, err := split.DecodeParams([]byte(answer), nil); !errors.Is(err, split.ErrNotHandedOver) {
			t.Errorf("%s: %v", answer, err)
		}
	}
	if _, err := split.DecodeParams([]byte(`not JSON`), nil); err == nil || errors.Is(err, split.ErrNotHandedOver) {
		t.Errorf("not JSON: %v", err)
	}
}

// A worker that handed nothing over is remembered for a minute, and the memory is bounded.
func TestLapses(t *testing.T) {
	var l split.Lapses
	now := time.Now()
	if l.Has(1, now) || !l.Add(1, now) || l.Add(1, now) || !l.Has(1, now.Add(59*time.Second)) {
		t.Error("worker 1 is not remembered")
	}
	if later := now.Add(time.Minute); l.Has(1, later) || !l.Add(1, later) {
		t.Error("worker 1 is not forgotten")
	}
	for id := range kv.WorkerID(10_000) {
		l.Add(id, now)
	}
	if l.Has(9_999, now) {
		t.Error("the memory has no bound")
	}
}

func Example() {
	body := []byte(`{"prompt":[1,2,3,4,5,6,7,8],"max_tokens":100}`)
	r, err := openai.Parse(openai.Completions, body)
	if err != nil {
		fmt.Println(err)
		return
	}
	rule := split.Rule{MinTokens: 4}
	fmt.Printf("%q %q\n", split.Unfit(r), rule.Whole(len(r.Tokens), 0))
	prefill, err := openai.Apply(body, split.PrefillEdits(r, split.Yard.PrefillParams(r.Route, nil))...)
	fmt.Println(string(prefill), err)
	decode, err := openai.Apply(body, openai.Edit{Key: "kv_transfer_params", Value: split.AwaitParams(2, time.Second, nil)})
	fmt.Println(string(decode), err)
	// Output:
	// "" ""
	// {"prompt":[1,2,3,4,5,6,7,8],"max_tokens":1,"stream":false} <nil>
	// {"prompt":[1,2,3,4,5,6,7,8],"max_tokens":100,"kv_transfer_params":{"blockyard":{"await":2,"deadline_ms":1000}}} <nil>
}

// A decode worker counts with all of its tiers, at most to the end of the prompt; other workers do not count.
func TestMostCached(t *testing.T) {
	decode := map[kv.WorkerID]struct{}{2: {}, 3: {}}
	overlaps := []decide.Overlap{{Worker: kv.Worker{ID: 1}}, {Worker: kv.Worker{ID: 2}}, {Worker: kv.Worker{ID: 3}}}
	overlaps[0].Hits[kv.TierDevice] = 9
	overlaps[1].Hits[kv.TierDevice], overlaps[1].Hits[kv.TierHost] = 1, 2
	overlaps[2].Hits[kv.TierDisk] = 2
	for prompt, want := range map[int]int{1000: 48, 40: 40} {
		if got := split.MostCached(overlaps, decode, 16, prompt); got != want {
			t.Errorf("prompt of %d tokens: %d cached, want %d", prompt, got, want)
		}
	}
}

// Nothing is left to prefill for the decode worker. With weights its cache earns no credit, unless Dynamo's
// conditional rule keeps prompts there.
func TestDecodeOverride(t *testing.T) {
	objective := "ttft"
	for name, c := range map[string]struct {
		config config.Config
		credit bool
	}{
		"weights":     {config.Config{Score: config.ScoreWeights}, true},
		"conditional": {config.Config{Score: config.ScoreWeights, ConditionalDisaggEnabled: true}, false},
		"price":       {config.Config{Score: config.ScorePrice}, false},
	} {
		o := split.DecodeOverride(&config.Override{Objective: &objective}, &c.config)
		if *o.AssumeKVReuse || *o.TrackPrefillTokens || o.Objective != &objective || (o.OverlapScoreCredit != nil) != c.credit {
			t.Errorf("%s: %+v", name, o)
		}
		if split.DecodeOverride(nil, &c.config).Objective != nil {
			t.Errorf("%s: an objective that nobody asked for", name)
		}
	}
}
