package lint

import (
	"strings"
	"testing"
)

// example is one file that a rule must accept or refuse.
type example struct {
	path, content string
	bad           bool
}

func good(path, content string) example { return example{path, content, false} }
func bad(path, content string) example  { return example{path, content, true} }

func TestEveryRuleSeesItsBadExampleAndAcceptsItsGoodOne(t *testing.T) {
	examples := ruleExamples()
	for _, r := range rules() {
		t.Run(strings.ReplaceAll(r.name, " ", "-"), func(t *testing.T) {
			seen := map[bool]bool{}
			for _, e := range examples[r.name] {
				seen[e.bad] = true
				found := r.check(loadExample(t, e.path, e.content))
				if (len(found) > 0) != e.bad {
					t.Errorf("%s: found %v, bad is %t:\n%s", e.path, found, e.bad, e.content)
				}
				for _, p := range found {
					if p.path != e.path || p.line == 0 || p.text == "" {
						t.Errorf("problem %+v does not say where in %s and what", p, e.path)
					}
				}
			}
			if !seen[true] || !seen[false] {
				t.Error("the rule needs a good and a bad example")
			}
		})
	}
}

func importing(pkg string, paths ...string) string {
	return "package " + pkg + "\n\nimport (\n\t\"" + strings.Join(paths, "\"\n\t\"") + "\"\n)\n"
}

func ruleExamples() map[string][]example {
	return map[string][]example{
		layerRule.name: {
			good("agent/a.go", importing("agent", "fmt", "example.org/m/blockmgr", "example.org/m/publisher", "example.org/m/internal/kv")),
			good("blockmgr/a.go", importing("blockmgr", "example.org/m/blockmgr/storage", "example.org/m/layout")),
			good("internal/command/a.go", importing("command", "example.org/m/agent", "example.org/m/router")),
			bad("agent/a.go", importing("agent", "example.org/m/internal/command")),
			good("agent/a_test.go", importing("agent", "example.org/m/lab/engine")),
			bad("agent/a.go", importing("agent", "example.org/m/lab/engine")),
			bad("blockmgr/a.go", importing("blockmgr", "example.org/m/publisher")),
			bad("router/index/a.go", importing("index", "example.org/m/consolidator")),
			bad("router/a_test.go", importing("router", "example.org/m/publisher")),
			bad("internal/kv/a.go", importing("kv", "example.org/m/layout")),
			bad("agent/a.go", importing("agent", "example.org/m/router")),
			bad("layout/a.go", importing("layout", "example.org/m/blockmgr")),
			bad("novelty/a.go", "package novelty\n"),
			bad("internal/novelty/a.go", "package novelty\n"),
			bad("internal/kv/a.go", importing("kv", "example.org/m/internal/workload")),
			bad("layout/a.go", importing("layout", "example.org/m/internal/gpu")),
			bad("router/index/a.go", importing("index", "example.org/m/router/schedule")),
		},
		doubleRule.name: {
			good("agent/a_test.go", "package agent\n\ntype fakeClock struct{}\n"),
			good("lab/engine/a.go", "package engine\n\ntype fakeClock struct{}\n"),
			good("blockmgr/storage/storagetest/a.go", "package storagetest\n\nfunc Inject() {}\n"),
			bad("agent/a.go", "package agent\n\ntype fakeClock struct{}\n"),
			bad("agent/fake.go", "package agent\n"),
			bad("blockmgr/a.go", "package blockmgr\n\ntype Options struct{ TrustBytes bool }\n"),
			bad("blockmgr/a.go", "package blockmgr\n\nfunc (p *Pool) injectError() {}\n"),
		},
		pureRule.name: {
			good("internal/kv/a.go", importing("kv", "fmt", "crypto/sha256")),
			good("internal/kv/a_test.go", importing("kv", "os")),
			good("internal/gpu/a.go", importing("gpu", "os")),
			bad("internal/kv/a.go", importing("kv", "os")),
			bad("internal/kvevent/a.go", importing("kvevent", "net/http")),
			bad("layout/a.go", importing("layout", "go.uber.org/zap/zapcore")),
			good("consolidator/sequence/a.go", "package sequence\n\nimport \"time\"\n\nconst pause = time.Second\n"),
			bad("consolidator/sequence/a.go", "package sequence\n\nimport \"time\"\n\nvar now = time.Now()\n"),
		},
		testKitRule.name: {
			good("blockmgr/a_test.go", importing("blockmgr", "example.org/m/blockmgr/storage/storagetest")),
			good("lab/stress/a.go", importing("stress", "example.org/m/blockmgr/storage/storagetest")),
			bad("blockmgr/a.go", importing("blockmgr", "example.org/m/blockmgr/storage/storagetest")),
			bad("agent/a.go", importing("agent", "example.org/m/blockmgr/storage/storagetest")),
			good("blockmgr/storage/storagetest/a.go", importing("storagetest", "testing")),
			good("blockmgr/a_test.go", importing("blockmgr", "testing")),
			bad("internal/recorded/a.go", importing("recorded", "testing")),
		},
		hookRule.name: {
			good("blockmgr/a.go", "package blockmgr\n\n// Abandon drops all. It is for fault tests.\nfunc Abandon() {}\n"),
			good("blockmgr/a_test.go", "package blockmgr\n\n// TryAt is for tests.\nfunc TryAt() {}\n"),
			good("agent/agenttest/a.go", "package agenttest\n\n// Dial is for tests.\nfunc Dial() {}\n"),
			bad("blockmgr/a.go", "package blockmgr\n\n// TryAt sets the time. It is\n// for tests.\nfunc TryAt() {}\n"),
			bad("agent/a.go", "package agent\n\ntype T struct {\n\t// Wrap is for tests.\n\tWrap int\n}\n"),
		},
		shelfRule.name: {
			good("publisher/nats/conn.go", importing("nats", "github.com/nats-io/nats.go")),
			good("router/source/nats/source.go", importing("router", "github.com/nats-io/nats.go")),
			good("router/feed_test.go", importing("router", "github.com/nats-io/nats-server/v2/server")),
			good("agent/metrics.go", importing("agent", "github.com/prometheus/client_golang/prometheus/promhttp")),
			good("blockmgr/a.go", importing("blockmgr", "golang.org/x/sys/unix", "example.org/m/layout")),
			bad("router/http.go", importing("router", "github.com/nats-io/nats.go")),
			bad("publisher/nats/conn.go", importing("nats", "github.com/nats-io/nats-server/v2/server")),
			bad("blockmgr/a.go", importing("blockmgr", "github.com/prometheus/client_golang/prometheus")),
			bad("agent/zmq.go", importing("agent", "github.com/pebbe/zmq4")),
			bad("agent/a.go", importing("agent", "pgregory.net/rapid")),
			bad("agent/a_test.go", importing("agent", "github.com/stretchr/testify/require")),
		},
		leakRule.name: {
			good("publisher/a.go", importing("publisher", "github.com/nats-io/nats.go")+
				"type Feed struct{ conn *nats.Conn }\nfunc dial() *nats.Conn { return nil }\nfunc (f *Feed) Close() error { return nil }\n"),
			good("publisher/a.go", importing("publisher", "go.uber.org/zap")+"func New(log *zap.Logger) {}\n"),
			good("publisher/a.go", importing("publisher", "github.com/nats-io/nats.go")+"type conn struct{}\nfunc (conn) Raw() *nats.Conn { return nil }\n"),
			bad("publisher/a.go", importing("publisher", "github.com/nats-io/nats.go")+"func Dial() (*nats.Conn, error) { return nil, nil }\n"),
			bad("publisher/a.go", importing("publisher", "github.com/nats-io/nats-server/v2/server")+"type Embedded struct{ Server *server.Server }\n"),
			bad("publisher/a.go", importing("publisher", "github.com/nats-io/nats-server/v2/server")+"type Embedded struct{ *server.Server }\n"),
			bad("consolidator/a.go", "package consolidator\n\nimport z \"github.com/pebbe/zmq4\"\n\ntype Source interface{ Socket() *z.Socket }\n"),
			bad("consolidator/a.go", importing("consolidator", "github.com/pebbe/zmq4")+"type Rank struct{}\nfunc (r *Rank) Poll(p *zmq4.Poller) {}\n"),
			bad("agent/metrics.go", importing("agent", "github.com/prometheus/client_golang/prometheus")+"var Default prometheus.Registerer\n"),
		},
		budgetRule.name: {
			good("a/a.go", "package a\n"+strings.Repeat("\n", maxPackageLines-1)),
			good("a/a_test.go", "package a\n"+strings.Repeat("\n", maxPackageLines)),
			bad("a/a.go", "package a\n"+strings.Repeat("\n", maxPackageLines)),
		},
		sizeRule.name: {
			good("a/a.go", "package a\n"+strings.Repeat("\n", maxLines-1)),
			good("a/a.go", "// Code generated by a test. DO NOT EDIT.\n\npackage a\n"+strings.Repeat("\n", maxLines)),
			good("a/a.txt", strings.Repeat("\n", 2*maxLines)),
			bad("a/a.go", "package a\n"+strings.Repeat("\n", maxLines)),
		},
		functionRule.name: {
			good("a/a.go", "package a\n\nfunc f() {"+strings.Repeat("\n", maxFunctionLines-1)+"}\n"),
			good("a/a_test.go", "package a\n\nfunc f() {"+strings.Repeat("\n", maxFunctionLines)+"}\n"),
			bad("a/a.go", "package a\n\nfunc f() {"+strings.Repeat("\n", maxFunctionLines)+"}\n"),
		},
		packageDocRule.name: {
			good("a/doc.go", "// Package a does one thing.\npackage a\n"),
			good("cmd/x/doc.go", "// Command x does one thing.\npackage main\n"),
			bad("a/doc.go", "package a\n"),
			bad("a/a.go", "package a\n"),
			bad("a/a.go", "// Package a does one thing.\npackage a\n"),
			bad("a/doc.go", "// This does one thing.\npackage a\n"),
		},
		exportedDocRule.name: {
			good("a/a.go", "package a\n\n// F does.\nfunc F() {}\n\nfunc f() {}\n\ntype t struct{}\n\nfunc (t) M() {}\n"),
			good("a/a.go", "package a\n\n// Limits of a thing.\nconst (\n\tMin = 1\n\tMax = 2\n)\n\nconst (\n\tA = 1 // first\n\tb = 2\n)\n"),
			good("a/a_test.go", "package a\n\nfunc TestX() {}\n"),
			good("a/a.go", "package a\n\nconst (\n\t// Min and Max bound it.\n\tMin = 1\n\tMax = 2\n)\n"),
			bad("a/a.go", "package a\n\nconst (\n\tMin = 1\n\t// Max bounds it.\n\tMax = 2\n)\n"),
			bad("a/a.go", "package a\n\nfunc F() {}\n"),
			bad("a/a.go", "package a\n\ntype T int\n"),
			bad("a/a.go", "package a\n\n// T is.\ntype T int\n\nfunc (t *T) M() {}\n"),
			bad("a/a.go", "package a\n\nvar V = 1\n"),
		},
		exampleRule.name: {
			good("internal/kv/a.go", "package kv\n"),
			good("agent/agenttest/a.go", "package agenttest\n"),
			good("layout/example_test.go", "package layout_test\n"),
			bad("layout/a.go", "package layout\n"),
		},
		drawerRule.name: {
			good("internal/workload/a.go", "package workload\n"),
			bad("internal/util/a.go", "package util\n"),
			bad("internal/workload/a.go", "package helpers\n"),
			bad("common/a.go", "package kv\n"),
			bad("internal/util/a_test.go", "package util_test\n"),
		},
		sleepRule.name: {
			good("a/a.go", importing("a", "time")+"func f() { time.Sleep(1) }\n"),
			good("a/a_test.go", importing("a", "time")+"func f() { clock.Sleep(1); _ = time.Second }\n"),
			good("a/a_test.go", importing("a", "time", "testing/synctest")+"func f() { synctest.Wait(); time.Sleep(1) }\n"),
			bad("a/a_test.go", importing("a", "time")+"func f() { time.Sleep(1) }\n"),
			bad("a/a_test.go", "package a\n\nimport clock \"time\"\n\nvar nap = clock.Sleep\n"),
		},
		lockedRule.name: {
			good("a/a.go", "package a\n\nfunc (p *P) f() { p.mu.Lock(); p.gLocked(); p.mu.Unlock() }\n\nfunc (p *P) gLocked() { p.n++ }\n"),
			bad("a/a.go", "package a\n\nfunc (p *P) gLocked() { p.mu.Unlock(); p.work(); p.mu.Lock() }\n"),
		},
		initRule.name: {
			good("a/a.go", "package a\n\ntype t struct{}\n\nfunc (t) init() {}\n"),
			bad("a/a.go", "package a\n\nfunc init() {}\n"),
			bad("a/a_test.go", "package a\n\nfunc init() {}\n"),
		},
		unfinishedRule.name: {
			good("a/a.go", "package a\n\n// The method todo hacks nothing.\n"),
			bad("a/a.go", "package a\n\n// TO"+"DO: finish.\n"),
			bad("a/a.go", "package a\n\nvar x = 1 // FIX"+"ME(me)\n"),
			good("a.md", "What the demo prints:\n"),
			bad("a.md", "Result:\n\nDEMO_"+"OUTPUT\n"),
		},
		exitRule.name: {
			good("cmd/x/a.go", importing("main", "os")+"func main() { os.Exit(1) }\n"),
			good("a/a_test.go", importing("a", "os")+"func f() { os.Exit(1) }\n"),
			bad("a/a.go", importing("a", "os")+"func f() { os.Exit(1) }\n"),
			bad("a/a.go", importing("a", "log")+"func f() { log.Fatalf(\"no\") }\n"),
		},
		panicRule.name: {
			good("a/a.go", "package a\n\nfunc f() { panic(\"BUG: slot freed twice\") }\n"),
			good("a/a.go", importing("a", "fmt")+"func f() { panic(fmt.Sprintf(\"BUG: slot %d\", 1)) }\n"),
			good("a/a_test.go", "package a\n\nfunc f() { panic(1) }\n"),
			good("a/a.go", "package a\n\nfunc f() { defer func() { if r := recover(); r != nil { panic(r) } }() }\n"),
			bad("a/a.go", "package a\n\nfunc f(err error) { defer func() { recover() }(); panic(err) }\n"),
			bad("a/a.go", "package a\n\nfunc f(err error) { panic(err) }\n"),
			bad("a/a.go", "package a\n\nfunc f() { panic(\"oh no\") }\n"),
		},
		machineRule.name: {
			good("README.md", "See docs/root/x, https://example.org/home/ada, ~/.cache and /dev/shm/blockyard.\n"),
			good("Dockerfile", "WORKDIR /src\nCOPY --from=build /out/x /usr/local/bin/x\n"),
			bad("README.md", "cd /ho"+"me/ada/blockyard\n"),
			bad("a/a.go", "package a\n\nvar dir = \"/wo"+"rk/main\"\n"),
			bad("x.sh", "PATH=/ro"+"ot/go/bin:$PATH\n"),
			bad("x.md", "GOPROXY=http://192"+".168.1.7:3141\n"),
			bad("x.md", "see https://bu"+"ild.corp.internal/x\n"),
		},
	}
}
