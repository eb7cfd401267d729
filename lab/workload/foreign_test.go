package workload

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBailianTraceIsReadAsWholeRequests(t *testing.T) {
	const trace = `{"chat_id":1,"timestamp":5.5,"input_length":40,"output_length":7,"hash_ids":[1,2,3]}

{"chat_id":2,"timestamp":4,"input_length":32,"output_length":0,"hash_ids":[1,2]}`
	requests, err := ReadBailian(strings.NewReader(trace), "t", 0)
	if err != nil || len(requests) != 2 {
		t.Fatalf("%d requests, %v", len(requests), err)
	}
	first, second := requests[0].Prompt(nil), requests[1].Prompt(nil)
	if len(first) != 32 || len(second) != 40 || !slices.Equal(first, second[:32]) || requests[1].At != 1500*time.Millisecond {
		t.Errorf("%d and %d tokens at %v", len(first), len(second), requests[1].At)
	}
	if requests[0].OutputTokens != 1 || !requests[0].Whole {
		t.Errorf("%+v", requests[0])
	}
	for bad, want := range map[string]string{
		`[`: "t:1: want a JSON object", `{"timestamp":-1,"input_length":1}`: "t:1: field timestamp: -1 is not in 0..1e9",
		`{"timestamp":0,"input_length":0}`:                 "t:1: input length: 0 is not in 1..",
		`{"timestamp":0,"input_length":64,"hash_ids":[1]}`: "t:1: field hash_ids: 1 ids for 64 tokens in blocks of 16", ``: "t: no requests in it",
	} {
		if _, err := ReadBailian(strings.NewReader(bad), "t", 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", bad, err, want)
		}
	}
}

func TestTesterSessionIsAClosedLoopWithHelpers(t *testing.T) {
	const session = `{"id":"x","block_size":64,"requests":[
		{"t":0,"in":130,"out":5,"hash_ids":[1,2],"think_time":3},
		{"t":4,"requests":[{"t":4,"in":64,"out":2,"hash_ids":[9],"think_time":1}]},
		{"t":9,"in":192,"out":0,"hash_ids":[1,2,3],"think_time":2.5}]}`
	requests, err := ReadTester(strings.NewReader(session), "s", 7)
	if err != nil || len(requests) != 3 {
		t.Fatalf("%d requests, %v", len(requests), err)
	}
	a, c := requests[0].Prompt(nil), requests[2].Prompt(nil)
	if len(a) != 130 || len(c) != 192 || !slices.Equal(a[:128], c[:128]) {
		t.Errorf("%d and %d tokens that share no 128", len(a), len(c))
	}
	for i, r := range requests {
		if r.Session != 7 || r.Turn != i || !r.Whole {
			t.Errorf("%+v", r)
		}
	}
	if requests[0].Think != 0 || requests[2].Think != 2500*time.Millisecond || requests[2].OutputTokens != 1 {
		t.Errorf("%+v", requests)
	}
	other, err := ReadTester(strings.NewReader(strings.Replace(session, `"x"`, `"y"`, 1)), "s", 8)
	if err != nil || slices.Equal(a[:64], other[0].Prompt(nil)[:64]) {
		t.Errorf("ids of two sessions name the same tokens, %v", err)
	}
	for bad, want := range map[string]string{
		`{`: "want a session", `{"block_size":0}`: "field block_size: 0", `{"block_size":64}`: "no requests",
		`{"block_size":64,"requests":[{"in":64,"hash_ids":[1],"think_time":-1}]}`: "field think_time: -1",
	} {
		if _, err := ReadTester(strings.NewReader(bad), "s", 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", bad, err, want)
		}
	}
}

func TestAgentsHaveTurnsAndHelpers(t *testing.T) {
	o := AgentOptions{Seed: 3, Sessions: 30, Rate: 2, Systems: 2, Turns: 8, MaxTurns: 20, Forks: 0.2, Tools: time.Second,
		System: Lengths{Median: 900, Min: 900, Max: 900}, Tool: Lengths{Median: 50, Sigma: 1, Min: 4, Max: 500}, Output: Lengths{Median: 40, Sigma: 1, Min: 4, Max: 200}}
	requests, err := Agents(o)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Agents(o)
	if err != nil || len(again) != len(requests) || again[len(again)-1].ID != requests[len(requests)-1].ID {
		t.Errorf("equal options give %d and %d requests, %v", len(requests), len(again), err)
	}
	turns, helpers := make(map[[2]int]bool), 0
	for _, r := range requests {
		turns[[2]int{r.Session, r.Turn}] = true
	}
	for _, r := range requests {
		if r.Turn > 0 && !turns[[2]int{r.Session, r.Turn - 1}] {
			t.Errorf("%s has no turn before it", r.ID)
		}
		if r.Fork != nil {
			helpers++
			if !turns[[2]int{r.Fork.Session, r.Fork.Turn}] || r.Session < o.Sessions {
				t.Errorf("%s forks from %+v", r.ID, *r.Fork)
			}
		}
	}
	if helpers == 0 {
		t.Error("no agent has a helper")
	}
	o.Forks = 2
	if _, err := Agents(o); err == nil || err.Error() != "workload agents forks: 2 is not in 0..1" {
		t.Error(err)
	}
}
