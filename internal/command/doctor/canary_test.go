package doctor

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/router/frontend"
)

const healthyOverlap = `{"method":"overlap","overlaps":[{"worker_id":7,"dp_rank":0,"cached_tokens":64}]}`

// fakeDoor is a front door that answers two prompts.
type fakeDoor struct {
	status int
	// headers are those of the first answer and of the later ones.
	headers [2]map[string]string
	// served runs after the first prompt.
	served func()
}

// healthyDoor returns a door whose second answer comes from the cache of the same worker.
func healthyDoor() fakeDoor {
	first := map[string]string{
		frontend.WorkerHeader: "7/0", frontend.PredictedHeader: "0", frontend.DeliveredHeader: "0", frontend.TokensHeader: "exact",
	}
	second := maps.Clone(first)
	second[frontend.PredictedHeader], second[frontend.DeliveredHeader] = "64", "64"
	return fakeDoor{status: http.StatusOK, headers: [2]map[string]string{first, second}, served: func() {}}
}

// serveDoor serves the yard's door and returns its URL. The same prompt must come twice.
func (y *yard) serveDoor() string {
	var first string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/completions" || first != "" && first != string(body) {
			y.t.Errorf("%s: %v; the first prompt %.50s, then %.50s", r.URL.Path, err, first, body)
		}
		n := 1
		if first == "" {
			n, first = 0, string(body)
			y.door.served()
		}
		for name, value := range y.door.headers[n] {
			w.Header().Set(name, value)
		}
		w.WriteHeader(y.door.status)
		_, _ = io.WriteString(w, `{"choices":[]}`)
	}))
	y.t.Cleanup(s.Close)
	return s.URL
}

// canaryInjections are those of the prompt that doctor sends.
func canaryInjections() map[string]injection {
	status := func(code int) injection { return injection{inject: func(y *yard) { y.door.status = code }} }
	second := func(header, value string) injection {
		return injection{inject: func(y *yard) { y.door.headers[1][header] = value }}
	}
	// unknown makes the router have no block of the prompt.
	unknown := func(y *yard) {
		replace(y.router, "/v1/route", `"cached_tokens":64`, `"cached_tokens":0`)
		y.c.arrival = time.Millisecond
	}
	return map[string]injection{
		"canary-unreachable": {inject: func(y *yard) { y.c.Door = closed(y) }},
		"canary-denied":      status(http.StatusUnauthorized),
		"canary-failed":      status(http.StatusBadGateway),
		"canary-no-door":     {inject: func(y *yard) { delete(y.door.headers[0], frontend.WorkerHeader) }},
		"canary-tokens":      {inject: func(y *yard) { y.door.headers[0][frontend.TokensHeader] = "approximate (no render route)" }},
		"canary-other-router": {inject: func(y *yard) {
			y.door.headers[0][frontend.WorkerHeader] = "9/0"
		}},
		"canary-not-followed": {inject: func(y *yard) {
			unknown(y)
			y.router["/v1/feeds"] = strings.Replace(healthyFeeds, `"owner":"worker 7/0"`, `"owner":"worker 8/0"`, 1)
		}},
		"canary-no-event": {inject: unknown},
		"canary-other-blocks": {inject: func(y *yard) {
			unknown(y)
			y.door.served = func() { replace(y.router, "/v1/feeds", `"cursor":3,"announced":3`, `"cursor":4,"announced":4`) }
		}},
		"canary-elsewhere":     second(frontend.WorkerHeader, "8/0"),
		"canary-no-hit":        second(frontend.PredictedHeader, "0"),
		"canary-unmeasured":    second(frontend.DeliveredHeader, "unknown"),
		"canary-not-delivered": second(frontend.DeliveredHeader, "0"),
	}
}
