package kubernetes_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router/workers"
	"github.com/blockyard-ai/blockyard/router/workers/kubernetes"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// address is an endpoint; conditions are "ready", "terminating", "unready" or "unknown".
func address(ip, condition string) map[string]any {
	conditions := map[string]any{"ready": condition == "ready", "serving": condition != "unready", "terminating": condition == "terminating"}
	if condition == "unknown" {
		conditions = map[string]any{}
	}
	return map[string]any{"addresses": []string{ip}, "conditions": conditions, "nodeName": "n1", "zone": "z1",
		"targetRef": map[string]any{"kind": "Pod", "namespace": "models", "name": "llama-" + ip, "uid": "0"}}
}

func portNamed(name string, number int) map[string]any {
	return map[string]any{"name": name, "protocol": "TCP", "port": number}
}

func ipv4(ports []map[string]any, endpoints ...map[string]any) slice {
	return slice{"addressType": "IPv4", "endpoints": endpoints, "ports": ports}
}

var onePort = []map[string]any{portNamed("", 8000)}

// seen collects what a finder finds.
type seen struct {
	mu    sync.Mutex
	found []workers.Found
	calls int
}

func (s *seen) set(all []workers.Found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found, s.calls = all, s.calls+1
}

// text returns the servers as "url url(leaving)".
func (s *seen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, f := range s.found {
		text := strings.TrimPrefix(f.URL, "http://")
		if f.Leaving {
			text += "(leaving)"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// find runs a finder until the test ends.
func find(t *testing.T, a *apiServer, text string, log *zap.Logger) *seen {
	t.Helper()
	f, err := kubernetes.Parse(text, a.cluster)
	if err != nil {
		t.Fatal(err)
	}
	f.Log = log
	s := &seen{}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- f.Run(ctx, s.set) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *seen) becomes(t *testing.T, want string) {
	t.Helper()
	waittest.Pass(t, func() string {
		if got := s.text(); got != want {
			return fmt.Sprintf("servers %q; the last ones are %q", want, got)
		}
		return ""
	})
}

// TestServersFollowTheSlices: endpoints of several pages and slices, their conditions,
// changes, deletions, and a watch that the API server ends.
func TestServersFollowTheSlices(t *testing.T) {
	a := newAPIServer(t)
	a.put("llama-a", ipv4(onePort, address("192.0.2.1", "ready"), address("192.0.2.2", "terminating"), address("192.0.2.3", "unready")))
	a.put("llama-b", ipv4(onePort, address("192.0.2.4", "unknown")))
	s := find(t, a, "models/llama", nil)
	s.becomes(t, "192.0.2.1:8000 192.0.2.2:8000(leaving) 192.0.2.3:8000(leaving) 192.0.2.4:8000")
	a.put("llama-a", ipv4(onePort, address("192.0.2.1", "terminating"), address("192.0.2.3", "ready")))
	s.becomes(t, "192.0.2.1:8000(leaving) 192.0.2.3:8000 192.0.2.4:8000")
	a.put("llama-c", ipv4(onePort, address("192.0.2.5", "ready"), address("192.0.2.1", "ready"))) // 192.0.2.1 moves
	s.becomes(t, "192.0.2.1:8000 192.0.2.3:8000 192.0.2.4:8000 192.0.2.5:8000")
	a.put("llama-v6", slice{"addressType": "IPv6", "endpoints": []any{address("fd00::1", "ready")}, "ports": onePort})
	a.do(func() { a.ends++ })
	a.remove("llama-b")
	s.becomes(t, "192.0.2.1:8000 192.0.2.3:8000 192.0.2.5:8000")
	a.remove("llama-a")
	a.remove("llama-c")
	s.becomes(t, "[fd00::1]:8000")
	a.remove("llama-v6")
	s.becomes(t, "")
	if a.lists != 1 {
		t.Errorf("%d lists, want 1: a watch that ends goes on at its resource version", a.lists)
	}
}

// TestAnOldResourceVersionIsListedAgain: 410 as a status and as an event. A bookmark moves
// the version on, so that nothing is listed again after one.
func TestAnOldResourceVersionIsListedAgain(t *testing.T) {
	for _, asEvent := range []bool{false, true} {
		a := newAPIServer(t)
		a.errorEvents = asEvent
		a.put("llama-a", ipv4(onePort, address("192.0.2.1", "ready")))
		s := find(t, a, "models/llama:8000", nil)
		s.becomes(t, "192.0.2.1:8000")
		watches := func() (n int) { a.do(func() { n = len(a.watches) }); return n }
		waittest.Until(t, "a watch", func() bool { return watches() == 1 })
		// Other objects change; a bookmark tells the new version.
		a.do(func() { a.revision += 50 })
		a.do(func() { a.compacted = a.revision; a.ends++ })
		waittest.Until(t, "the next watch", func() bool { return watches() == 2 })
		if a.lists != 1 {
			t.Errorf("%d lists after a bookmark, want 1", a.lists)
		}
		a.do(func() { a.ends++; a.refuse = 503 })
		a.put("llama-a", ipv4(onePort, address("192.0.2.2", "ready")))
		a.do(func() { a.compacted, a.history, a.refuse = a.revision, nil, 0 })
		s.becomes(t, "192.0.2.2:8000")
		if a.lists != 2 {
			t.Errorf("%d lists, want 2", a.lists)
		}
	}
}

// TestFailuresKeepTheServers: a refused router keeps what it knows, says once what is
// wrong, and goes on by itself. The token is read again for each request.
func TestFailuresKeepTheServers(t *testing.T) {
	a := newAPIServer(t)
	a.put("llama-a", ipv4(onePort, address("192.0.2.1", "ready")))
	core, logs := observer.New(zap.WarnLevel)
	s := find(t, a, "models/llama", zap.New(core))
	s.becomes(t, "192.0.2.1:8000")
	a.do(func() { a.refuse = 403; a.ends++ })
	waittest.Until(t, "the refusal is logged", func() bool { return logs.FilterField(zap.String("service", "models/llama")).Len() > 0 })
	a.do(func() { a.refuse = 0; a.token = "second" })
	a.put("llama-a", ipv4(onePort, address("192.0.2.2", "ready")))
	waittest.Until(t, "the old token is refused", func() bool { return logs.Len() == 2 })
	if s.text() != "192.0.2.1:8000" {
		t.Errorf("servers %q while the API server refuses", s.text())
	}
	a.giveToken(t, "second")
	s.becomes(t, "192.0.2.2:8000")
	if text := fmt.Sprint(logs.All()[0].ContextMap()["error"]); !strings.Contains(text, "status 403 Forbidden: endpointslices.discovery.k8s.io is forbidden") {
		t.Errorf("logged %s", text)
	}
}

// TestPorts: the port of a flag by number and by name, the only one, the one named http,
// and TLS.
func TestPorts(t *testing.T) {
	several := []map[string]any{portNamed("metrics", 9000), portNamed("http", 8001), portNamed("grpc", 9001)}
	udp := []map[string]any{{"name": "u", "protocol": "UDP", "port": 53}, {"name": "http", "protocol": "TCP", "port": 8002}}
	tls := []map[string]any{{"name": "s", "protocol": "TCP", "port": 8443, "appProtocol": "https"}}
	for _, c := range []struct {
		flag  string
		ports []map[string]any
		want  string
	}{
		{"models/llama", several, "192.0.2.1:8001"},
		{"models/llama:grpc", several, "192.0.2.1:9001"},
		{"models/llama:7000", nil, "192.0.2.1:7000"},
		{"models/llama", udp, "192.0.2.1:8002"},
		{"models/llama", tls, "https://192.0.2.1:8443"},
	} {
		a := newAPIServer(t)
		a.put("llama-a", ipv4(c.ports, address("192.0.2.1", "ready")))
		find(t, a, c.flag, nil).becomes(t, c.want)
	}
	a := newAPIServer(t)
	a.put("llama-a", ipv4(several[:1], address("192.0.2.1", "ready")))
	a.put("llama-b", ipv4(several[1:], address("192.0.2.2", "ready")))
	core, logs := observer.New(zap.WarnLevel)
	find(t, a, "models/llama:http", zap.New(core)).becomes(t, "192.0.2.2:8001")
	waittest.Until(t, "the slice without the port is named", func() bool { return logs.Len() > 0 })
	if text := fmt.Sprint(logs.All()[0].ContextMap()["error"]); text != `endpoint slice llama-a: no TCP port "http"; name one with NAMESPACE/SERVICE:PORT` {
		t.Errorf("logged %s", text)
	}
}

// TestNonsense: answers that are none are named, and the servers stay.
func TestNonsense(t *testing.T) {
	const list = `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"},"addressType":"IPv4","endpoints":[{"addresses":["192.0.2.1"]}],"ports":[{"port":1}]}]}`
	for want, c := range map[string]struct{ list, watch string }{
		"list endpoint slices: invalid character": {"<html>", ""},
		"status 500":                            {"", ""},
		`event of the unknown type "RESET"`:     {list, `{"type":"RESET","object":{}}`},
		"ADDED: json: cannot unmarshal":         {list, `{"type":"ADDED","object":{"endpoints":7}}`},
		"an event has more than 8388608 bytes":  {list, `{"type":"` + strings.Repeat("x", 9<<20) + `"}`},
		"watch endpoint slices: unexpected EOF": {list, `{"type":"ADD`},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case c.list == "":
				http.Error(w, "no", http.StatusInternalServerError)
			case r.URL.Query().Get("watch") == "":
				fmt.Fprint(w, c.list)
			default:
				fmt.Fprint(w, c.watch)
			}
		}))
		defer server.Close()
		core, logs := observer.New(zap.WarnLevel)
		s := find(t, &apiServer{cluster: kubernetes.Cluster{URL: server.URL}}, "models/llama", zap.New(core))
		waittest.Until(t, want, func() bool { return logs.Len() > 0 })
		if text := fmt.Sprint(logs.All()[0].ContextMap()["error"]); !strings.Contains(text, want) {
			t.Errorf("logged %s, want %s", text, want)
		}
		if c.list == list && s.text() != "192.0.2.1:1" {
			t.Errorf("%s: servers %q", want, s.text())
		}
	}
}

func TestParse(t *testing.T) {
	a := newAPIServer(t)
	for text, want := range map[string]string{
		"":                   `"": want NAMESPACE/SERVICE[:PORT]`,
		"a/b/c":              `"a/b/c": want NAMESPACE/SERVICE[:PORT]`,
		"Models/llama":       "lower-case",
		"models/llama:":      `port "" is not in 1..65535`,
		"models/llama:0":     `port "0" is not in 1..65535`,
		"models/llama:70000": `port "70000" is not in 1..65535`,
		"models/llama:A":     `port "A" is not in 1..65535`,
		"models/llama,id=3":  "id: 3 cannot be the id of several servers",
	} {
		if _, err := kubernetes.Parse(text, a.cluster); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := kubernetes.Parse("llama", a.cluster); err != nil {
		t.Errorf("the pod's own namespace: %v", err)
	}
	for field, c := range map[string]kubernetes.Cluster{
		"certificate authority": {URL: a.URL, CAFile: a.cluster.TokenFile, Namespace: "x"},
		"no such file":          {URL: a.URL, CAFile: a.cluster.CAFile + ".none", Namespace: "x"},
	} {
		if _, err := kubernetes.Parse("llama", c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := kubernetes.InCluster(); err == nil || !strings.Contains(err.Error(), "KUBERNETES_SERVICE_HOST") {
		t.Errorf("outside a cluster: %v", err)
	}
}
