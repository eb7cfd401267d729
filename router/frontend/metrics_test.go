package frontend_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/admission"
)

// Requests are measured by model and worker: phases, first token, gap, whole, and the cached
// tokens with the cause of the difference.
func TestMetricsOfRequests(t *testing.T) {
	b := newBench(t, frontend.Options{Admission: admission.Limits{Running: 1}}, newServer(t, 1, streams(chunk, lastChunk, usageOnly, "[DONE]")))
	for _, body := range []string{prompt, `{"model":"m","prompt":"text without tokens","stream":true}`} {
		if resp, text := b.post("/v1/completions", body); resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d: %s", resp.StatusCode, text)
		}
	}
	b.expectIdle()
	scraped := httptest.NewRecorder()
	b.router.Metrics().Handler().ServeHTTP(scraped, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`time_to_first_token_seconds_count{model="m",worker="1/0"} 2`,
		`inter_token_latency_seconds_count{model="m",worker="1/0"} 2`,
		`request_seconds_count{model="m",worker="1/0"} 2`,
		`phase_seconds_count{model="m",phase="tokens"} 2`,
		`phase_seconds_count{model="m",phase="admission"} 2`,
		`phase_seconds_count{model="m",phase="decision"} 2`,
		`phase_seconds_count{model="m",phase="queue"} 2`,
		`cached_tokens_predicted_total{model="m",worker="1/0"} 0`,
		`cached_tokens_delivered_total{model="m",worker="1/0"} 4`,
		`cached_tokens_difference_total{cause="predicted_cache",direction="more",model="m",worker="1/0"} 4`,
		`prompt_tokens_reported_total{model="m",worker="1/0"} 9`,
		`output_tokens_total{model="m"} 4`,
		`requests_running 0`,
		`admission_running{model="m"} 0`,
		`admission_waiting{model="m"} 0`,
		`admission_waiting_bytes{model="m"} 0`,
		`admission_refused_total{reason="queue_full"} 0`,
		`bodies_kept_bytes 0`,
	} {
		if !strings.Contains(scraped.Body.String(), "blockyard_frontend_"+want+"\n") {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if t.Failed() {
		for line := range strings.Lines(scraped.Body.String()) {
			if strings.HasPrefix(line, "blockyard_frontend_") && !strings.Contains(line, "_bucket") {
				t.Log(line)
			}
		}
	}
}
