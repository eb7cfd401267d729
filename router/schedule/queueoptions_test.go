package schedule

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestBusyIsMoreThanAThreshold(t *testing.T) {
	half, tokens, nothing := .5, int64(100), int64(0)
	for _, c := range []struct {
		name    string
		options QueueOptions
		prefill int64
		batch   uint64
		want    bool
	}{
		{"at the fraction", QueueOptions{Threshold: &half}, 1024, 2048, false},
		{"above the fraction", QueueOptions{Threshold: &half}, 1025, 2048, true},
		{"unknown batch", QueueOptions{Threshold: &half}, 5_000_000, 0, false},
		{"above an unknown batch", QueueOptions{Threshold: &half}, 5_000_001, 0, true},
		{"at the tokens", QueueOptions{ThresholdTokens: &tokens}, 100, 0, false},
		{"above the tokens", QueueOptions{ThresholdTokens: &tokens}, 101, 0, true},
		{"either is enough", QueueOptions{Threshold: &half, ThresholdTokens: &tokens}, 101, 2048, true},
		{"any tokens", QueueOptions{ThresholdTokens: &nothing}, 1, 0, true},
		{"no threshold", QueueOptions{}, math.MaxInt64, 1, false},
	} {
		if got := c.options.Busy(c.prefill, c.batch); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestQueueOptionsOutOfRangeAreNamed(t *testing.T) {
	zero, nan, inf, minus := 0.0, math.NaN(), math.Inf(1), int64(-1)
	for want, o := range map[string]QueueOptions{
		"queue threshold: 0 ":             {Threshold: &zero},
		"queue threshold: NaN ":           {Threshold: &nan},
		"queue threshold: +Inf ":          {Threshold: &inf},
		"queue threshold tokens: -1 ":     {ThresholdTokens: &minus},
		"max pending requests: -1 ":       {MaxPending: -1},
		"max pending tokens: -1 ":         {MaxTokens: -1},
		"max allowed workers: -1 ":        {MaxAllowed: -1},
		"request limit per worker: -2 ":   {Limits: QueueLimits{Requests: -2}},
		"token limit per worker: -3 ":     {Limits: QueueLimits{Tokens: -3}},
		"cached token limit per worker: ": {Limits: QueueLimits{CachedTokens: -4}},
	} {
		if _, err := NewQueue(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestRejectionReadsAsClientsKnowIt(t *testing.T) {
	b, err := json.Marshal(&QueueRejection{LimitTokens, 40, 30})
	if want := `{"limit_kind":"raw_isl_tokens","current":40,"limit":30}`; err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}
