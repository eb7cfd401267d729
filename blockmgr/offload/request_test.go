package offload

import (
	"slices"
	"testing"
)

// step is one call of Scheduled and what it must offer.
type step struct {
	extend              int // tokens decoded before it
	computed, scheduled int
	blocks, priorities  []uint32
	first               int
	want                []uint32 // ids of the blocks offered
	err                 string
}

// follow runs steps against a request of blocks of 4 tokens.
func follow(t *testing.T, name string, minPriority uint32, prompt int, steps []step) {
	t.Helper()
	r, err := NewRequest(Rules{BlockSize: 4, MinPriority: minPriority}, prompt)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range steps {
		if err := r.Extend(s.extend); err != nil {
			t.Fatal(err)
		}
		run, err := r.Scheduled(s.computed, s.scheduled, s.blocks, s.priorities)
		if got := text(err); got != s.err {
			t.Errorf("%s, step %d: error %q, want %q", name, i, got, s.err)
		}
		if !slices.Equal(run.Blocks, s.want) || run.Count() > 0 && run.First != s.first || len(run.Priorities) != run.Count() {
			t.Errorf("%s, step %d: offered %d from %d on, %v, want %v from %d", name, i, run.Count(), run.First, run.Blocks, s.want, s.first)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestC2OffloadEvaluation(t *testing.T) {
	follow(t, "two chunks, the tail is no block", 0, 10, []step{
		{scheduled: 6, blocks: []uint32{70, 71, 72}, want: []uint32{70}},
		{computed: 6, scheduled: 4, first: 1, want: []uint32{71}},
		{computed: 10, scheduled: 1},
	})
	follow(t, "the engine's own prefix is not offered", 0, 10, []step{
		{computed: 4, scheduled: 6, blocks: []uint32{70, 71, 72}, first: 1, want: []uint32{71}},
	})
	follow(t, "a lower priority ends it for good", 50, 12, []step{
		{scheduled: 12, blocks: []uint32{70, 71, 72}, priorities: []uint32{80, 40, 90}, want: []uint32{70}},
		{extend: 4, computed: 12, scheduled: 4, blocks: []uint32{73}, priorities: []uint32{90}},
	})
}

func TestC2BlockIDsAreMergedWithWhatTheyRepeat(t *testing.T) {
	for _, c := range []struct {
		name             string
		have, more, want []uint32
		err              string
	}{
		{"what follows", []uint32{3, 4, 5}, []uint32{6, 7}, []uint32{3, 4, 5, 6, 7}, ""},
		{"a part again", []uint32{3, 4, 5, 6, 7}, []uint32{6, 7, 8, 9}, []uint32{3, 4, 5, 6, 7, 8, 9}, ""},
		{"all again", []uint32{3, 4, 5, 6, 7}, []uint32{3, 4, 5, 6, 7}, []uint32{3, 4, 5, 6, 7}, ""},
		{"all again and more", []uint32{3, 4}, []uint32{3, 4, 5}, []uint32{3, 4, 5}, ""},
		{"the end again", []uint32{3, 4, 5}, []uint32{5}, []uint32{3, 4, 5}, ""},
		{"nothing", []uint32{3, 4}, nil, []uint32{3, 4}, ""},
		{"the first ones", nil, []uint32{9, 3}, []uint32{9, 3}, ""},
		{"one left out", []uint32{3, 4, 5, 6, 7}, []uint32{6, 8, 9}, nil, "offload blocks: 8 follows 6, want 7 as before"},
		{"inside", []uint32{3, 4, 5, 6, 7}, []uint32{4, 5}, nil, "offload blocks: 4 to 5 lie inside the request's 5, want a run that reaches their end"},
		{"an old one behind a new one", []uint32{3, 4}, []uint32{5, 3}, nil, "offload blocks: 3 comes again, want it only as 0 of the request"},
		{"a new one twice", []uint32{3}, []uint32{4, 4}, nil, "offload blocks: 4 is there twice"},
	} {
		var d deviceBlocks
		d.add(c.have, nil, 0)
		n, err := d.overlap(c.more, nil)
		if text(err) != c.err {
			t.Errorf("%s: error %q, want %q", c.name, text(err), c.err)
		}
		if err != nil {
			continue
		}
		if d.add(c.more, nil, n); !slices.Equal(d.ids, c.want) || len(d.priorities) != len(d.ids) {
			t.Errorf("%s: %v, want %v", c.name, d.ids, c.want)
		}
	}
}

func TestChunksThatNameAllBlocksAgainOfferEachOnce(t *testing.T) {
	follow(t, "chunked prefill", 0, 16, []step{
		{scheduled: 8, blocks: []uint32{5, 6}, want: []uint32{5, 6}},
		{computed: 8, scheduled: 4, blocks: []uint32{5, 6, 7}, first: 2, want: []uint32{7}},
		{computed: 12, scheduled: 4, blocks: []uint32{7, 8}, first: 3, want: []uint32{8}},
	})
	follow(t, "all blocks at once", 0, 16, []step{
		{scheduled: 5, blocks: []uint32{5, 6, 7, 8}, want: []uint32{5}},
		{computed: 5, scheduled: 2},
		{computed: 7, scheduled: 9, first: 1, want: []uint32{6, 7, 8}},
	})
}

func TestPrioritiesAreRememberedForLaterChunks(t *testing.T) {
	follow(t, "given with the first chunk", 50, 12, []step{
		{scheduled: 4, blocks: []uint32{5, 6, 7}, priorities: []uint32{60, 50, 49}, want: []uint32{5}},
		{computed: 4, scheduled: 8, first: 1, want: []uint32{6}},
	})
	follow(t, "given again, and changed", 50, 12, []step{
		{scheduled: 4, blocks: []uint32{5, 6, 7}, priorities: []uint32{60, 10, 10}, want: []uint32{5}},
		{computed: 4, scheduled: 8, blocks: []uint32{6, 7}, priorities: []uint32{50, 50}, first: 1, want: []uint32{6, 7}},
	})
	follow(t, "repeated without priorities", 50, 8, []step{
		{scheduled: 4, blocks: []uint32{5, 6}, priorities: []uint32{60, 60}, want: []uint32{5}},
		{computed: 4, scheduled: 4, blocks: []uint32{5, 6}, first: 1, want: []uint32{6}},
	})
	follow(t, "none at all are 0", 1, 8, []step{{scheduled: 8, blocks: []uint32{5, 6}}})
	follow(t, "without a threshold they do not matter", 0, 8, []step{{scheduled: 8, blocks: []uint32{5, 6}, want: []uint32{5, 6}}})
	r, _ := NewRequest(Rules{BlockSize: 4, MinPriority: 1}, 12)
	if run, err := r.Scheduled(4, 8, []uint32{5, 6, 7}, []uint32{9, 8, 7}); err != nil || !slices.Equal(run.Priorities, []uint32{8, 7}) {
		t.Errorf("priorities %v, %v", run.Priorities, err)
	}
}

func TestDecodedTokensAreOfferedOnceTheyAreKnown(t *testing.T) {
	follow(t, "told with each step", 0, 6, []step{
		{scheduled: 6, blocks: []uint32{5, 6}, want: []uint32{5}},
		{extend: 1, computed: 6, scheduled: 1},
		{extend: 1, computed: 7, scheduled: 1, first: 1, want: []uint32{6}},
		{extend: 1, computed: 8, scheduled: 1, blocks: []uint32{7}},
	})
	follow(t, "told late", 0, 6, []step{
		{scheduled: 6, blocks: []uint32{5, 6}, want: []uint32{5}},
		{computed: 6, scheduled: 1},
		{computed: 7, scheduled: 1},
		{extend: 2, computed: 8, scheduled: 1, blocks: []uint32{7}, first: 1, want: []uint32{6}},
	})
	follow(t, "never told", 0, 6, []step{
		{scheduled: 6, blocks: []uint32{5, 6}, want: []uint32{5}},
		{computed: 6, scheduled: 2},
		{computed: 8, scheduled: 4, blocks: []uint32{7}},
	})
}

// The step that computes a guess leaves bytes for a token that is not in the
// sequence. Its block waits until the true token has been computed.
func TestRejectedGuessesAreNeverOffered(t *testing.T) {
	follow(t, "three guesses, the last one wrong", 0, 5, []step{
		{scheduled: 5, blocks: []uint32{5, 6}, want: []uint32{5}},
		{extend: 1, computed: 5, scheduled: 3}, // token 5, guesses of 6 and 7
		// 6 was right, 7 is another: both are known, 7 is computed in this step.
		{extend: 2, computed: 7, scheduled: 1, first: 1, want: []uint32{6}},
	})
	follow(t, "all wrong", 0, 5, []step{
		{scheduled: 5, blocks: []uint32{5, 6}, want: []uint32{5}},
		{extend: 1, computed: 5, scheduled: 3},
		{extend: 1, computed: 6, scheduled: 1},
		{extend: 1, computed: 7, scheduled: 1, first: 1, want: []uint32{6}},
	})
}

func TestLoadedBlocksAreNotOfferedAgain(t *testing.T) {
	follow(t, "two blocks loaded", 0, 13, []step{
		{computed: 8, scheduled: 5, blocks: []uint32{5, 6, 7, 8}, first: 2, want: []uint32{7}},
	})
}

// KVBM takes a preempted request for a skipped one, and recomputes it even when
// its blocks are in host memory.
func TestPreemptedRequestMatchesAndStoresAgain(t *testing.T) {
	r, err := NewRequest(Rules{BlockSize: 4}, 12)
	if err != nil {
		t.Fatal(err)
	}
	schedule := func(computed, scheduled int, blocks []uint32, want ...uint32) {
		t.Helper()
		run, err := r.Scheduled(computed, scheduled, blocks, nil)
		if err != nil || !slices.Equal(run.Blocks, want) {
			t.Errorf("offered %v, %v, want %v", run.Blocks, err, want)
		}
	}
	if !r.Asks(0) || !r.Asks(0) {
		t.Error("a new request is not looked up, each time that it waits")
	}
	schedule(0, 8, []uint32{5, 6}, 5, 6)
	if r.Asks(8) {
		t.Error("a request that was left out of a step is looked up")
	}
	schedule(8, 4, []uint32{7}, 7)
	if !r.Asks(4) {
		t.Error("a preempted request is not looked up")
	}
	schedule(4, 8, []uint32{7, 8, 5}, 8, 5) // one block was in the engine's cache
	r.Preempted()
	schedule(0, 12, []uint32{1, 2, 3}, 1, 2, 3)
}

func TestPreemptionDoesNotOpenWhatALowPriorityEnded(t *testing.T) {
	r, err := NewRequest(Rules{BlockSize: 4, MinPriority: 50}, 12)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		run, err := r.Scheduled(0, 12, []uint32{1, 2, 3}, []uint32{90, 10, 90})
		if err != nil || !slices.Equal(run.Blocks, []uint32{1}) {
			t.Errorf("offered %v, %v", run.Blocks, err)
		}
		r.Preempted()
	}
	if run, err := r.Scheduled(0, 12, []uint32{1, 2, 3}, []uint32{90, 90, 90}); err != nil || !slices.Equal(run.Blocks, []uint32{1}) {
		t.Errorf("offered %v, %v", run.Blocks, err)
	}
}

func TestWhatAnEngineMayNotSayIsAnErrorWithoutEffect(t *testing.T) {
	good := []step{{scheduled: 8, blocks: []uint32{5, 6}, want: []uint32{5, 6}}}
	for _, s := range []step{
		{computed: -1, blocks: []uint32{5}, err: "offload computed tokens -1: want 0 to 4, which the request's blocks hold"},
		{computed: 9, blocks: []uint32{5, 6}, err: "offload computed tokens 9: want 0 to 8, which the request's blocks hold"},
		{computed: 4, scheduled: 5, blocks: []uint32{5, 6}, err: "offload scheduled tokens 5 after 4: want 0 to 4, which the request's blocks hold"},
		{computed: 4, scheduled: -1, blocks: []uint32{5, 6}, err: "offload scheduled tokens -1 after 4: want 0 to 4, which the request's blocks hold"},
		{blocks: []uint32{5, 6}, priorities: []uint32{1}, err: "offload priorities: 1 of them, want one for each of 2 blocks"},
		{blocks: []uint32{5, 5}, err: "offload blocks: 5 is there twice"},
		{blocks: slices.Repeat([]uint32{5}, MaxBlocks+1), err: "offload blocks: 1048577 in a request, want at most 1048576"},
	} {
		follow(t, s.err, 0, 8, append([]step{s}, good...))
	}
	for _, bad := range []int{0, MaxBlockSize + 1} {
		if _, err := NewRequest(Rules{BlockSize: bad}, 1); err == nil {
			t.Errorf("block size %d was accepted", bad)
		}
	}
	for _, bad := range []int{-1, MaxTokens + 1} {
		if _, err := NewRequest(Rules{BlockSize: 1}, bad); err == nil {
			t.Errorf("a prompt of %d tokens was accepted", bad)
		}
	}
}
