package queue

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
		options Options
		prefill int64
		batch   uint64
		want    bool
	}{
		{"at the fraction", Options{Class: Class{Threshold: &half}}, 1024, 2048, false},
		{"above the fraction", Options{Class: Class{Threshold: &half}}, 1025, 2048, true},
		{"unknown batch", Options{Class: Class{Threshold: &half}}, 5_000_000, 0, false},
		{"above an unknown batch", Options{Class: Class{Threshold: &half}}, 5_000_001, 0, true},
		{"at the tokens", Options{Class: Class{ThresholdTokens: &tokens}}, 100, 0, false},
		{"above the tokens", Options{Class: Class{ThresholdTokens: &tokens}}, 101, 0, true},
		{"either is enough", Options{Class: Class{Threshold: &half, ThresholdTokens: &tokens}}, 101, 2048, true},
		{"any tokens", Options{Class: Class{ThresholdTokens: &nothing}}, 1, 0, true},
		{"no threshold", Options{}, math.MaxInt64, 1, false},
	} {
		if got := c.options.Busy(c.prefill, c.batch); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestQueueOptionsOutOfRangeAreNamed(t *testing.T) {
	below, nan, inf, minus := -0.5, math.NaN(), math.Inf(1), int64(-1)
	for want, o := range map[string]Options{
		"queue threshold: -0.5 ":          {Class: Class{Threshold: &below}},
		"queue threshold: NaN ":           {Class: Class{Threshold: &nan}},
		"queue threshold: +Inf ":          {Class: Class{Threshold: &inf}},
		"queue threshold tokens: -1 ":     {Class: Class{ThresholdTokens: &minus}},
		"queue discipline: discipline(9)": {Class: Class{Discipline: 9}},
		"queue deadline: -1s ":            {Class: Class{Deadline: -time.Second}},
		"queue max wait: -1s ":            {MaxWait: -time.Second},
		"max pending requests: -1 ":       {MaxPending: -1},
		"max pending tokens: -1 ":         {MaxTokens: -1},
		"max allowed workers: -1 ":        {MaxAllowed: -1},
		"request limit per worker: -2 ":   {Class: Class{Limits: Limits{Requests: -2}}},
		"token limit per worker: -3 ":     {Class: Class{Limits: Limits{Tokens: -3}}},
		"cached token limit per worker: ": {Class: Class{Limits: Limits{CachedTokens: -4}}},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestRejectionReadsAsClientsKnowIt(t *testing.T) {
	b, err := json.Marshal(&Rejection{"default", LimitTokens, 40, 30})
	if want := `{"policy_class":"default","limit_kind":"raw_isl_tokens","current":40,"limit":30}`; err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}
