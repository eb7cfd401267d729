package inspect

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func misses(t *testing.T, c Misses) (string, error) {
	t.Helper()
	if err := c.Validate(); err != nil {
		return "", err
	}
	var out bytes.Buffer
	err := c.Run(t.Context(), &out)
	return out.String(), err
}

// The table of misses has each request with its causes, and the sums since the start.
func TestMissesAreShown(t *testing.T) {
	url := answers(t, map[string]string{"/v1/misses": `{"explained":true,"missed_tokens":{"evicted":64,"new_content":9,"tier_slow":0},"requests":[
		{"request_id":"r1","model":"m","worker":"1/0","age_seconds":2.5,"prompt_tokens":81,"cached_predicted":8,"cached_delivered":8,"misses":[
			{"cause":"evicted","tokens":64,"owner":"pool 7","tier":"disk","ago_ms":3200},{"cause":"new_content","tokens":9}]},
		{"request_id":"r2","model":"m","worker":"2/0","age_seconds":3,"prompt_tokens":81,"cached_predicted":8,"cached_delivered":80,"difference":"index_behind","misses":[
			{"cause":"index_behind","tokens":1,"owner":"worker 1/0","tier":"device","behind_ms":40},{"cause":"evicted","tokens":1,"ago_ms":-5}]}]}`})
	got, err := misses(t, Misses{URL: url, Limit: 20, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	squeezed := strings.Join(strings.Fields(got), " ")
	for _, want := range []string{
		"missed tokens since the start: evicted 64, new_content 9 REQUEST",
		"r1 1/0 2.5s 81 8 8 64 evicted (pool 7, disk, 3.2s ago); 9 new_content",
		"r2 2/0 3.0s 81 8 80 1 index_behind (worker 1/0, device, by 40ms); 1 evicted (5ms after the decision); 72 more than predicted: index_behind",
	} {
		if !strings.Contains(squeezed, want) {
			t.Errorf("it lacks %q:\n%s", want, got)
		}
	}
	if text, err := misses(t, Misses{URL: url, JSON: true, Timeout: 30 * time.Second}); err != nil || !strings.Contains(text, `"ago_ms": -5`) {
		t.Errorf("--json: %v\n%s", err, text)
	}
}

// A router without a memory of evicted blocks says so. An agent is no router.
func TestNoMisses(t *testing.T) {
	off := answers(t, map[string]string{"/v1/misses": `{"explained":false,"missed_tokens":{},"requests":[]}`})
	if got, err := misses(t, Misses{URL: off, Timeout: 30 * time.Second}); err != nil || !strings.Contains(got, "miss_memory_blocks") {
		t.Errorf("%v: %s", err, got)
	}
	for want, c := range map[string]Misses{
		"not a router that explains misses": {URL: answers(t, nil), Timeout: 30 * time.Second},
		"--limit 1025: want 0..1024":        {URL: off, Limit: 1025, Timeout: time.Second},
		"--timeout 0s: want more than 0s":   {URL: off},
	} {
		if _, err := misses(t, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A hostile id neither moves columns nor commands the terminal.
func TestMissesEscapeWhatTheRouterSays(t *testing.T) {
	url := answers(t, map[string]string{"/v1/misses": `{"explained":true,"missed_tokens":{"a\u001b[2J":1},"requests":[{"request_id":"r\n9\t\u001b[2J","misses":[{"cause":"\u001b[1m","owner":"o\n"}]}]}`})
	got, err := misses(t, Misses{URL: url, Timeout: 30 * time.Second})
	if err != nil || strings.ContainsAny(got, "\x1b\t") || !strings.Contains(got, `r\n9\t\x1b[2J`) {
		t.Errorf("%v: it shows what is not text: %q", err, got)
	}
}
