package kubernetes_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/router/workers/kubernetes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiServer speaks the part of the Kubernetes API that lists and watches EndpointSlices:
// pages with continue tokens, resource versions, watch events, bookmarks, 410 for versions
// that were compacted, and bearer tokens.
type apiServer struct {
	*httptest.Server
	cluster kubernetes.Cluster

	mu       sync.Mutex
	changed  *sync.Cond
	revision int
	slices   map[string]slice
	history  []change
	// compacted is the oldest revision that a watch may begin at.
	compacted int
	// ends counts what ends the open watches. refuse is the status of all answers, 0 for
	// none. token is the only accepted token.
	ends   int
	refuse int
	token  string
	// errorEvents reports 410 as an event of the watch and not as a status.
	errorEvents bool
	lists       int
	watches     []string // resource versions
}

type slice = map[string]any

// change is one event of the history.
type change struct {
	revision int
	kind     string
	object   slice
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{slices: make(map[string]slice), revision: 100, token: "first"}
	a.changed = sync.NewCond(&a.mu)
	a.Server = httptest.NewTLSServer(a)
	t.Cleanup(func() {
		a.do(func() { a.ends++ })
		a.Close()
	})
	dir := t.TempDir()
	a.cluster = kubernetes.Cluster{
		URL: a.URL, TokenFile: filepath.Join(dir, "token"), CAFile: filepath.Join(dir, "ca.crt"), Namespace: "own",
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})
	if err := os.WriteFile(a.cluster.CAFile, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	a.giveToken(t, "first")
	return a
}

// giveToken replaces the file of the pod's token, as the kubelet does.
func (a *apiServer) giveToken(t *testing.T, token string) {
	t.Helper()
	if err := os.WriteFile(a.cluster.TokenFile, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// do changes the server and wakes its watches.
func (a *apiServer) do(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	a.changed.Broadcast()
}

// put stores a slice of the Service models/llama.
func (a *apiServer) put(name string, s slice) {
	a.do(func() {
		a.revision++
		kind := "MODIFIED"
		if a.slices[name] == nil {
			kind = "ADDED"
		}
		stored := slice{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": map[string]any{
			"name": name, "namespace": "models", "resourceVersion": strconv.Itoa(a.revision), "generation": 3,
			"labels": map[string]string{"kubernetes.io/service-name": "llama", "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
		}}
		for k, v := range s {
			stored[k] = v
		}
		a.slices[name] = stored
		a.history = append(a.history, change{a.revision, kind, stored})
	})
}

// remove deletes a slice.
func (a *apiServer) remove(name string) {
	a.do(func() {
		a.revision++
		gone := slice{}
		for k, v := range a.slices[name] {
			gone[k] = v
		}
		gone["metadata"] = map[string]any{"name": name, "namespace": "models", "resourceVersion": strconv.Itoa(a.revision)}
		delete(a.slices, name)
		a.history = append(a.history, change{a.revision, "DELETED", gone})
	})
}

// ServeHTTP implements http.Handler.
func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	a.mu.Lock()
	refuse, token := a.refuse, a.token
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Header.Get("Authorization") != "Bearer "+token:
		status(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
	case refuse != 0:
		status(w, refuse, "Forbidden", `endpointslices.discovery.k8s.io is forbidden: User "x" cannot list resource`)
	case r.URL.Path != "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices" || q.Get("labelSelector") != "kubernetes.io/service-name=llama":
		status(w, http.StatusNotFound, "NotFound", r.URL.String())
	case q.Get("watch") == "1":
		a.watch(w, r, q.Get("resourceVersion"))
	default:
		a.list(w, q.Get("limit"), q.Get("continue"))
	}
}

func status(w http.ResponseWriter, code int, reason, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(failure(code, reason, message))
}

func failure(code int, reason, message string) map[string]any {
	return map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
		"message": message, "reason": reason, "code": code}
}

// list answers with one slice a page, so that every list of two has a second page.
func (a *apiServer) list(w http.ResponseWriter, limit, from string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if from == "" {
		a.lists++
	}
	var items []slice
	for _, name := range sortedKeys(a.slices) {
		if name > from {
			items = append(items, a.slices[name])
		}
	}
	meta := map[string]any{"resourceVersion": strconv.Itoa(a.revision)}
	if len(items) > 1 && limit != "" {
		items = items[:1]
		meta["continue"] = items[0]["metadata"].(map[string]any)["name"]
	}
	if items == nil {
		items = []slice{}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": meta, "items": items})
}

func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, version string) {
	at, err := strconv.Atoi(version)
	if err != nil {
		status(w, http.StatusBadRequest, "BadRequest", fmt.Sprintf("resourceVersion: %q", version))
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watches = append(a.watches, version)
	a.changed.Broadcast()
	tooOld := failure(http.StatusGone, "Expired", fmt.Sprintf("too old resource version: %d (%d)", at, a.compacted))
	if at < a.compacted {
		if a.errorEvents {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ERROR", "object": tooOld})
			return
		}
		w.WriteHeader(http.StatusGone)
		_ = json.NewEncoder(w).Encode(tooOld)
		return
	}
	stop := contextWakes(r, a)
	defer stop()
	flush := http.NewResponseController(w)
	ends := a.ends
	for ends == a.ends && r.Context().Err() == nil {
		for _, c := range a.history {
			if c.revision > at {
				_ = json.NewEncoder(w).Encode(map[string]any{"type": c.kind, "object": c.object})
				at = c.revision
			}
		}
		if r.URL.Query().Get("allowWatchBookmarks") == "true" && a.revision > at {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{
				"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
				"metadata":  map[string]any{"resourceVersion": strconv.Itoa(a.revision), "creationTimestamp": nil},
				"endpoints": nil, "ports": nil, "addressType": "",
			}})
			at = a.revision
		}
		_ = flush.Flush()
		a.changed.Wait()
	}
}

// contextWakes wakes the server's watches when a client has gone.
func contextWakes(r *http.Request, a *apiServer) func() {
	ended := make(chan struct{})
	go func() {
		select {
		case <-r.Context().Done():
		case <-ended:
		}
		a.do(func() {})
	}()
	return func() { close(ended) }
}
