package policy

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// cluster is a View of workers 1, 2, ….
type cluster struct {
	states  []State
	session int
}

func (c *cluster) State(w kv.Worker) State { return c.states[w.ID-1] }
func (c *cluster) Session() int            { return c.session }

// selection is a prompt of 16 blocks for as many workers as there are states.
func selection(c *cluster, requests []int32, prefill []int64, hits ...index.Hit) *schedule.Selection {
	m := &index.Members{}
	for i := range c.states {
		m.List = append(m.List, index.Member{Worker: kv.Worker{ID: kv.WorkerID(i + 1)}})
	}
	config := schedule.DefaultConfig()
	r := &schedule.Request{Tokens: 1024, BlockSize: 64, Members: m, Hits: hits}
	for i := range 16 {
		r.Sequence = append(r.Sequence, kv.SequenceHash(1000+i))
	}
	return &schedule.Selection{Request: r, Config: &config, Members: m, Loads: &load.Columns{Requests: requests, PrefillTokens: prefill, ActiveBlocks: make([]int32, len(requests))}}
}

func on(member int32, device, host uint32) index.Hit {
	return index.Hit{Member: member, Hits: index.Hits{kv.TierDevice: device, kv.TierHost: host}}
}

// TestRules: each rule takes the worker that its description names.
func TestRules(t *testing.T) {
	for _, tc := range []struct {
		name, policy string
		states       []State
		requests     []int32
		prefill      []int64
		hits         []index.Hit
		want         int
	}{
		{"the shortest queue of the engines", "jsq", []State{{Running: 5}, {Running: 1, Waiting: 3}, {Running: 9}}, []int32{0, 9, 0}, nil, nil, 1},
		{"the least work left", "least-work", []State{{Work: 3}, {Work: 2}, {Work: 1}}, nil, nil, nil, 2},
		{"a prefix outweighs a queue", "llm-d", []State{{Waiting: 2}, {}}, nil, nil, []index.Hit{on(0, 16, 0)}, 0},
		{"and does not outweigh a queue and a full device", "llm-d", []State{{Waiting: 2, Used: 1}, {}}, nil, nil, []index.Hit{on(0, 16, 0)}, 1},
		{"host memory counts less than the device", "llm-d", []State{{}, {}}, nil, nil, []index.Hit{on(0, 0, 16), on(1, 14, 0)}, 1},
		{"the soonest first token", "mooncake", []State{{}, {}}, nil, []int64{900, 100}, []index.Hit{on(0, 12, 0)}, 1},
		{"a long match is exploited", "preble", []State{{}, {}}, []int32{5, 0}, nil, []index.Hit{on(0, 12, 0)}, 0},
		{"a short match is not", "preble", []State{{}, {}}, []int32{5, 0}, nil, []index.Hit{on(0, 4, 0)}, 1},
		{"out of balance", "cache-aware", []State{{}, {}}, []int32{100, 3}, nil, nil, 1},
		{"within the bound of loads", "bounded-hash", []State{{}, {}, {}}, []int32{90, 90, 0}, nil, nil, 2},
	} {
		if tc.requests == nil {
			tc.requests = make([]int32, len(tc.states))
		}
		if tc.prefill == nil {
			tc.prefill = make([]int64, len(tc.states))
		}
		c := &cluster{states: tc.states}
		p, _ := Named(tc.policy)
		m, err := p.Selector(Context{View: c, Seed: 1, TokensPerSecond: 10_000}).Select(selection(c, tc.requests, tc.prefill, tc.hits...))
		if err != nil || m != tc.want {
			t.Errorf("%s, %s: member %d, %v, want %d", tc.policy, tc.name, m, err, tc.want)
		}
	}
}

// TestAffinitiesRemember: a session stays, and what was sent to a worker draws what begins with it.
func TestAffinitiesRemember(t *testing.T) {
	c := &cluster{states: make([]State, 3)}
	stay := newSticky(Context{View: c, Seed: 1})
	first, _ := stay.Select(selection(c, []int32{5, 0, 5}, make([]int64, 3)))
	again, _ := stay.Select(selection(c, []int32{0, 50, 0}, make([]int64, 3)))
	c.session = 1
	other, _ := stay.Select(selection(c, []int32{0, 50, 9}, make([]int64, 3)))
	if first != 1 || again != 1 || other != 0 {
		t.Errorf("members %d, %d and %d, want 1, 1 and 0", first, again, other)
	}
	tree := newCacheAware(Context{View: c, Seed: 1})
	sent, _ := tree.Select(selection(c, make([]int32, 3), make([]int64, 3)))
	if next, _ := tree.Select(selection(c, []int32{9, 9, 9}, make([]int64, 3))); next != sent {
		t.Errorf("member %d after %d", next, sent)
	}
}

// TestNamesAreUnique, and every policy has a description and one way to choose.
func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range All() {
		if seen[p.Name] || p.About == "" || (p.Selector != nil && (p.Priced || p.Configure != nil)) {
			t.Errorf("%+v", p)
		}
		seen[p.Name] = true
	}
	if _, ok := Named("luck"); ok {
		t.Error("there is a policy luck")
	}
}

// TestRolesHaveTheirOwnAffinities: what was sent to workers of one role draws nothing to those of another.
func TestRolesHaveTheirOwnAffinities(t *testing.T) {
	for _, name := range []string{"sticky", "cache-aware"} {
		c := &cluster{states: make([]State, 4)}
		p, _ := Named(name)
		selector := p.Selector(Context{View: c, Seed: 1})
		choose := func(candidates []int32, requests ...int32) int {
			in := selection(c, requests, make([]int64, 4))
			in.Candidates = candidates
			m, err := selector.Select(in)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		prefill, decode := []int32{0, 1}, []int32{2, 3}
		first, second := choose(prefill, 1, 0, 0, 0), choose(decode, 0, 0, 1, 0)
		for range 3 {
			if p, d := choose(prefill, 0, 9, 9, 9), choose(decode, 9, 9, 9, 9); p != first || d != second || p > 1 || d < 2 {
				t.Errorf("%s: members %d and %d, want %d and %d again", name, p, d, first, second)
			}
		}
	}
}
