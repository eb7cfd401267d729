package frontend_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/router/frontend"
)

// BenchmarkStream measures a streamed completion of 20 chunks through the door, server and
// client included: a prompt of 91 tokens, the chunks of one answer at once or each by
// itself.
func BenchmarkStream(b *testing.B) {
	event := []byte("data: " + chunk + "\n\n")
	end := []byte("data: " + usageOnly + "\n\ndata: [DONE]\n\n")
	body := `{"model":"m","prompt":[` + strings.Repeat("123456,", 90) + `1],"stream":true,"max_tokens":20}`
	for name, flush := range map[string]bool{"together": false, "one-by-one": true} {
		b.Run(name, func(b *testing.B) {
			s := newServer(b, 1, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				for range 20 {
					_, _ = w.Write(event)
					if flush {
						w.(http.Flusher).Flush()
					}
				}
				_, _ = w.Write(end)
			})
			bed := newBench(b, frontend.Options{}, s)
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
			b.ReportAllocs()
			for b.Loop() {
				resp, err := client.Post(bed.url+"/v1/completions", "application/json", strings.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || bytes.Count(got, []byte("\n\n")) != 21 {
					b.Fatalf("%d events, %v", bytes.Count(got, []byte("\n\n")), err)
				}
			}
		})
	}
}
