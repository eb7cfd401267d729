package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/agent/admin"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/console"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const blockSize = 4

// node is a block manager with the handlers of its admin API. It implements admin.Pools.
type node struct {
	manager         *blockmgr.Manager
	control, public http.Handler
	ready           bool
	sessions        blockmgr.SessionID // one for each pool
}

func (n *node) Manager() *blockmgr.Manager { return n.manager }

func (n *node) Resize(kind kv.Tier, bytes uint64, dryRun bool) (<-chan struct{}, error) {
	if dryRun {
		return nil, n.manager.CheckResize(kind, bytes)
	}
	return n.manager.Resize(kind, bytes)
}

func (n *node) ID(ns kv.NamespaceID) uint64 { return 1000 + uint64(ns[0]) }

// openNode opens a node with a host tier and a disk tier, and no pool.
func openNode(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	m, err := blockmgr.Open(blockmgr.Config{
		HostDir: filepath.Join(dir, "host"), HostBytes: 1 << 20,
		DiskDir: filepath.Join(dir, "disk"), DiskBytes: 1 << 20, ExtentBytes: 256 << 10,
		ScrubBytesPerSecond: -1, // a block that is scrubbed is in use
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() }) // a test may have closed it
	n := &node{manager: m}
	n.control, n.public = n.describe().Control(control.Operators{}), n.describe().Handler()
	return n
}

// describe returns what the node's handlers serve.
func (n *node) describe() admin.Public {
	return admin.Public{
		Pools: n, Ready: func() bool { return n.ready }, Stats: func() any { return map[string]int{"sessions": 3} },
		History: console.NewHistory(func() []console.Value { return nil }), Version: "1.2",
		Metrics: http.NotFoundHandler(), Events: func(*http.ServeMux) {},
	}
}

// ask sends a request to a handler and returns the status and the body of the answer.
func ask(t *testing.T, h http.Handler, method, path, body string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://127.0.0.1"+path, strings.NewReader(body))
	h.ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

// namespace is a namespace with small blocks. Each weights has a pool of its own.
func namespace(weights string) kv.Namespace {
	return kv.Namespace{
		Model: "tiny", Weights: weights, DType: "bfloat16", KVFormat: "test", Layout: "fully_contiguous",
		Layers: 2, OuterDim: 2, BlockSize: blockSize, InnerDim: 64, DTypeBytes: 2, TP: 1, PP: 1, DCP: 1,
	}
}

// prompt is n blocks of tokens.
func prompt(n int) []uint32 {
	tokens := make([]uint32, n*blockSize)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	return tokens
}

// fill opens the pool of weights and stores the first n blocks of the prompt in both tiers.
func (n *node) fill(t *testing.T, weights string, blocks int) *pool {
	t.Helper()
	p, err := n.manager.Pool(namespace(weights))
	if err != nil {
		t.Fatal(err)
	}
	n.sessions++
	session := n.sessions
	if err := p.BeginSession(session); err != nil {
		t.Fatal(err)
	}
	filled := &pool{Pool: p, session: session}
	filled.store(t, "", "", blocks)
	return filled
}

// store stores the first n blocks of the prompt for an adapter in both tiers, and names them p.blocks.
func (p *pool) store(t *testing.T, fingerprint, adapter string, n int) {
	t.Helper()
	id := blockmgr.NewIdentifier()
	p.blocks = id.Prompt(id.Root(p.NamespaceID(), fingerprint, adapter, ""), prompt(n), blockSize)
	got, err := p.Grant(p.session, p.blocks, 0)
	if err != nil || len(got.Grants) != n {
		t.Fatalf("granted %+v, error %v: want %d slots", got, err, n)
	}
	var slots []blockmgr.Slot
	for _, g := range got.Grants {
		slots = append(slots, g.Slot)
	}
	if err := p.Commit(p.session, slots); err != nil {
		t.Fatal(err)
	}
	if err := p.Quiesce(t.Context()); err != nil { // sealed, and written to disk
		t.Fatal(err)
	}
}

// pool is a pool with stored blocks and the session that stored them.
type pool struct {
	*blockmgr.Pool
	session blockmgr.SessionID
	blocks  []blockmgr.Block
}

// pin pins the first block until the function that it returns is called.
func (p *pool) pin(t *testing.T) (unpin func()) {
	t.Helper()
	found, err := p.Lookup(t.Context(), p.session, p.blocks[:1])
	if err != nil || len(found.Slots) != 1 {
		t.Fatalf("found %+v, error %v: want one block", found, err)
	}
	return func() {
		t.Helper()
		if err := p.Unpin(p.session, found.Slots); err != nil {
			t.Fatal(err)
		}
	}
}

// status is the answer of GET /v1/status about one pool.
func (n *node) status(t *testing.T, p *pool) (tiers map[string]blockmgr.TierStatus) {
	t.Helper()
	var list []struct {
		Namespace string
		Pool      uint64
		Tiers     map[string]blockmgr.TierStatus
	}
	code, body := ask(t, n.public, http.MethodGet, "/v1/status", "")
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != http.StatusOK {
		t.Fatalf("status %d, %s, error %v", code, body, err)
	}
	for _, s := range list {
		if s.Namespace == p.NamespaceID().String() && s.Pool == n.ID(p.NamespaceID()) {
			return s.Tiers
		}
	}
	t.Fatalf("no pool %s in %s", p.NamespaceID(), body)
	return nil
}

// wantTiers checks how many blocks of a pool are in use and not in use in each tier.
func (n *node) wantTiers(t *testing.T, p *pool, hostActive, hostInactive, diskActive, diskInactive int) {
	t.Helper()
	s := n.status(t, p)
	got := fmt.Sprint(s["host"].Active, s["host"].Inactive, s["disk"].Active, s["disk"].Inactive)
	if want := fmt.Sprint(hostActive, hostInactive, diskActive, diskInactive); got != want {
		t.Errorf("active and inactive blocks of host and disk: %s, want %s", got, want)
	}
}

// wantError checks that an answer has a status and a text in its field "error".
func wantError(t *testing.T, code int, body string, wantCode int, wantText string) {
	t.Helper()
	var e struct{ Error string }
	if err := json.Unmarshal([]byte(body), &e); err != nil || code != wantCode || !strings.Contains(e.Error, wantText) {
		t.Errorf("status %d, %s, error %v; want %d and %q", code, body, err, wantCode, wantText)
	}
}
