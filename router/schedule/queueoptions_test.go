package schedule

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
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
		{"at the fraction", QueueOptions{QueueClass: QueueClass{Threshold: &half}}, 1024, 2048, false},
		{"above the fraction", QueueOptions{QueueClass: QueueClass{Threshold: &half}}, 1025, 2048, true},
		{"unknown batch", QueueOptions{QueueClass: QueueClass{Threshold: &half}}, 5_000_000, 0, false},
		{"above an unknown batch", QueueOptions{QueueClass: QueueClass{Threshold: &half}}, 5_000_001, 0, true},
		{"at the tokens", QueueOptions{QueueClass: QueueClass{ThresholdTokens: &tokens}}, 100, 0, false},
		{"above the tokens", QueueOptions{QueueClass: QueueClass{ThresholdTokens: &tokens}}, 101, 0, true},
		{"either is enough", QueueOptions{QueueClass: QueueClass{Threshold: &half, ThresholdTokens: &tokens}}, 101, 2048, true},
		{"any tokens", QueueOptions{QueueClass: QueueClass{ThresholdTokens: &nothing}}, 1, 0, true},
		{"no threshold", QueueOptions{}, math.MaxInt64, 1, false},
	} {
		if got := c.options.Busy(c.prefill, c.batch); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestQueueOptionsOutOfRangeAreNamed(t *testing.T) {
	below, nan, inf, minus := -0.5, math.NaN(), math.Inf(1), int64(-1)
	for want, o := range map[string]QueueOptions{
		"queue threshold: -0.5 ":          {QueueClass: QueueClass{Threshold: &below}},
		"queue threshold: NaN ":           {QueueClass: QueueClass{Threshold: &nan}},
		"queue threshold: +Inf ":          {QueueClass: QueueClass{Threshold: &inf}},
		"queue threshold tokens: -1 ":     {QueueClass: QueueClass{ThresholdTokens: &minus}},
		"queue discipline: discipline(9)": {QueueClass: QueueClass{Discipline: 9}},
		"queue deadline: -1s ":            {QueueClass: QueueClass{Deadline: -time.Second}},
		"queue max wait: -1s ":            {MaxWait: -time.Second},
		"max pending requests: -1 ":       {MaxPending: -1},
		"max pending tokens: -1 ":         {MaxTokens: -1},
		"max allowed workers: -1 ":        {MaxAllowed: -1},
		"request limit per worker: -2 ":   {QueueClass: QueueClass{Limits: QueueLimits{Requests: -2}}},
		"token limit per worker: -3 ":     {QueueClass: QueueClass{Limits: QueueLimits{Tokens: -3}}},
		"cached token limit per worker: ": {QueueClass: QueueClass{Limits: QueueLimits{CachedTokens: -4}}},
	} {
		if _, err := NewQueue(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestRejectionReadsAsClientsKnowIt(t *testing.T) {
	b, err := json.Marshal(&QueueRejection{"default", LimitTokens, 40, 30})
	if want := `{"policy_class":"default","limit_kind":"raw_isl_tokens","current":40,"limit":30}`; err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}
