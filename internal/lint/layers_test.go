package lint

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

// layer says what the packages below a directory may import of this module,
// besides one another.
type layer struct {
	dir string
	may []string
}

// layers is the table of docs/packages.md. The longest directory
// that a file lies in is its layer.
func layers() []layer {
	return []layer{
		{"cmd", []string{"lab", "internal/command"}},
		{"lab", []string{"agent", "router", "blockmgr", "consolidator", "publisher", "layout", "internal"}},
		{"lab/cli", []string{"lab", "agent", "blockmgr", "publisher", "internal", "internal/command"}},
		{"lab/engine", []string{"internal/backoff", "internal/kv", "internal/kvevent", "internal/kvgroup", "internal/engineevent", "internal/proto"}},
		{"lab/cluster", []string{"lab/engine", "internal/kv", "internal/kvevent", "internal/kvgroup"}},
		{"lab/workload", nil},
		{"lab/golden", nil},
		{"lab/measure", nil},
		{"agent", []string{"blockmgr", "consolidator", "publisher", "layout", "internal"}},
		{"agent/engine", []string{"agent/pools", "agent/events", "agent/process", "agent/reports", "agent/descriptors", "agent/refusal", "agent/socket", "agent/agenttest", "blockmgr", "consolidator", "internal"}},
		{"agent/pools", []string{"agent/events", "agent/refusal", "agent/agenttest", "blockmgr", "consolidator", "publisher", "internal"}},
		{"agent/readahead", []string{"blockmgr", "internal"}},
		{"agent/events", []string{"agent/consolidated", "agent/readahead", "agent/refusal", "agent/agenttest", "blockmgr", "consolidator", "publisher", "internal"}},
		{"agent/consolidated", []string{"blockmgr", "consolidator", "publisher", "internal"}},
		{"agent/admin", []string{"blockmgr", "internal"}},
		{"agent/limits", []string{"blockmgr", "internal"}},
		{"agent/process", []string{"blockmgr"}},
		{"agent/reports", []string{"agent/refusal", "internal"}},
		{"agent/descriptors", []string{"agent/refusal", "internal"}},
		{"agent/refusal", []string{"internal"}},
		{"agent/socket", []string{"agent/agenttest", "internal"}},
		{"agent/agenttest", []string{"internal"}},
		{"router", []string{"internal"}},
		{"router/index", []string{"internal"}},
		{"router/index/runs", []string{"internal"}},
		{"router/index/groups", []string{"internal"}},
		{"router/approx", []string{"router/index", "internal"}},
		{"router/miss", []string{"router/index", "internal"}},
		{"router/decisions", []string{"router/schedule", "router/index", "internal"}},
		{"router/metrics", []string{"router/decide", "router/feed", "router/miss", "router/schedule", "internal"}},
		{"router/api", []string{"router", "internal"}},
		{"router/api/indexer", []string{"router", "internal"}},
		{"router/api/selection", []string{"router", "internal"}},
		{"router/api/shape", []string{"router", "internal"}},
		{"router/feed", []string{"router/source", "router/index", "router/miss", "internal"}},
		{"router/source", []string{"internal"}},
		{"router/source/nats", []string{"router/source", "internal"}},
		{"router/source/http", []string{"router/source", "internal"}},
		{"router/source/registry", []string{"router/source", "internal"}},
		{"router/source/dynamo", []string{"router/source", "internal"}},
		// The one part of the router that knows the agent's: see docs/decisions/the-router-follows-plain-engines-itself.md.
		{"router/source/zmq", []string{"router/source", "consolidator", "publisher", "internal"}},
		{"router/source/sourcetest", []string{"router/source", "internal"}},
		{"router/routertest", []string{"router", "internal"}},
		{"router/workers", []string{"router/source", "internal"}},
		{"router/load", []string{"router/index", "internal"}},
		{"router/replica", []string{"router/schedule", "router/load", "router/index", "internal"}},
		{"router/remote", []string{"router/feed", "router/index", "router/source", "internal"}},
		{"router/schedule", []string{"router/load", "router/index", "internal"}},
		{"router/config", []string{"router/schedule", "router/load", "router/approx", "router/index", "internal"}},
		{"router/policyfile", []string{"router/schedule", "internal"}},
		{"router/estimate", []string{"router/schedule", "router/load", "router/index", "internal"}},
		{"router/sharedcache", []string{"router/schedule", "internal"}},
		{"router/decide", []string{"router/config", "router/sharedcache", "router/schedule", "router/load", "router/approx", "router/index", "router/miss", "internal"}},
		{"router/frontend", []string{"router", "router/metrics", "router/miss", "router/workers", "router/frontend/admission", "router/frontend/memory", "router/frontend/openai", "router/frontend/session", "router/frontend/spans", "router/frontend/split", "router/frontend/tenant", "router/frontend/tokens", "router/config", "router/schedule", "router/load", "router/decide", "internal"}},
		{"router/frontend/extproc", []string{"router", "router/frontend", "router/workers", "internal"}},
		{"router/frontend/openai", []string{"internal"}},
		{"router/frontend/spans", nil},
		{"router/frontend/admission", []string{"internal"}},
		{"router/frontend/memory", []string{"internal"}},
		{"router/frontend/session", []string{"internal"}},
		{"router/frontend/split", []string{"router/frontend/openai", "router/config", "router/decide", "internal"}},
		{"router/frontend/tenant", []string{"internal"}},
		{"router/frontend/tokens", []string{"router/frontend/openai", "internal"}},
		{"blockmgr", []string{"layout", "internal"}},
		{"blockmgr/registry", []string{"internal"}},
		{"blockmgr/policy", []string{"blockmgr/registry", "internal"}},
		{"blockmgr/tenant", []string{"blockmgr/registry", "internal"}},
		{"blockmgr/settle", []string{"internal"}},
		{"blockmgr/tier", []string{"blockmgr/storage", "blockmgr/tenant", "blockmgr/policy", "blockmgr/registry", "internal"}},
		{"blockmgr/diskio", []string{"blockmgr/tier", "blockmgr/storage", "blockmgr/registry", "internal"}},
		{"blockmgr/config", []string{"layout", "internal"}},
		{"blockmgr/kvbm", []string{"blockmgr", "layout", "internal"}},
		{"blockmgr/storage", []string{"internal"}},
		{"blockmgr/node", []string{"blockmgr", "internal"}},
		{"consolidator", []string{"internal"}},
		{"consolidator/sequence", []string{"internal"}},
		{"consolidator/mirror", []string{"consolidator/checkpoint", "consolidator/residency", "consolidator/sequence", "consolidator/tokens", "consolidator/dense", "internal"}},
		{"consolidator/checkpoint", []string{"consolidator/residency", "consolidator/sequence", "internal"}},
		{"consolidator/residency", []string{"consolidator/tokens", "consolidator/dense", "internal"}},
		{"consolidator/tokens", []string{"internal"}},
		{"consolidator/dense", nil},
		{"publisher", []string{"internal"}},
		{"publisher/dynamo", []string{"publisher", "internal"}},
		{"publisher/httpfeed", []string{"publisher", "internal"}},
		{"publisher/nats", []string{"publisher", "internal"}},
		{"publisher/publishertest", []string{"publisher", "internal"}},
		{"publisher/zmqsink", []string{"publisher", "internal"}},
		{"layout", nil},
		{"internal/backoff", nil},
		{"internal/command", []string{"agent", "router", "blockmgr", "consolidator", "publisher", "internal"}},
		{"internal/bytesize", nil},
		{"internal/kv", []string{"internal/kvgroup"}},
		{"internal/kvgroup", nil},
		{"internal/msgpack", nil},
		{"internal/recordedtest", nil},
		{"internal/kvevent", []string{"internal/kv", "internal/kvgroup", "internal/msgpack", "internal/recordedtest"}},
		{"internal/engineevent", []string{"internal/kv", "internal/kvevent", "internal/msgpack", "internal/recordedtest"}},
		{"internal/proto", []string{"internal/kv", "internal/kvgroup"}},
		{"internal/natsauth", nil},
		{"internal/resource", []string{"internal/bytesize"}},
		{"internal/gpu", nil},
		{"internal/smart", nil},
		{"internal/metric", nil},
		{"internal/console", nil},
		{"internal/control", []string{"internal/reload"}},
		{"internal/bodies", nil},
		{"internal/connlimit", nil},
		{"internal/drain", nil},
		{"internal/fairshare", nil},
		{"internal/reload", nil},
		{"internal/waittest", nil},
		{"internal/servertls", []string{"internal/reload"}},
		{"internal/strictjson", nil},
		{"internal/lint", []string{"internal/kv", "internal/kvevent", "internal/proto"}}, // it checks the documents' examples
		{"examples", []string{"agent/consolidated", "blockmgr", "internal"}},
		{"scripts", nil},
		{"interop/console", []string{"lab/cluster", "lab/front"}},
		{"interop/pages", []string{"lab/cluster"}},
		{"interop/upgrade", []string{"lab/cluster", "lab/engine"}},
		{"interop/envoy", []string{"lab/cluster", "lab/front", "router/frontend/spans/spanstest"}},
	}
}

// layerOf is the layer of the file or package at path.
func layerOf(path string) (layer, bool) {
	var found layer
	for _, l := range layers() {
		if within(path, l.dir) && len(l.dir) > len(found.dir) {
			found = l
		}
	}
	return found, found.dir != ""
}

var layerRule = rule{
	name: "imports point down",
	reason: "blockmgr, consolidator, publisher and router meet only in internal types and in interfaces that the consumer declares, " +
		"so that each can be read, tested and replaced alone; agent and internal/command put them together",
	check: func(t *tree) []problem {
		return perFile(func(s *source, found report) {
			l, ok := layerOf(s.path)
			if !ok {
				found(s.syntax.Package, "%s belongs to no layer: add its directory to layers()", s.path)
				return
			}
			for p, pos := range s.imports {
				to, ours := strings.CutPrefix(p, t.module+"/")
				if !ours || within(to, l.dir) {
					continue
				}
				if s.isTest() && (slices.ContainsFunc(doubles(), func(dir string) bool { return within(to, dir) }) || testsWhole(l.dir, to)) {
					continue
				}
				if !slices.ContainsFunc(l.may, func(dir string) bool { return covers(dir, to) }) {
					found(pos, "%s must not import %s", l.dir, to)
				}
			}
		})(t)
	},
}

// covers reports whether a layer that may import dir may import the package at to.
// Commands are imported only where a layer names them: they lie above what the rest
// of internal is below.
func covers(dir, to string) bool {
	const commands = "internal/command"
	return within(to, dir) && (within(dir, commands) || !within(to, commands))
}

// doubles lists the packages of the lab, and those of test doubles, that every test may
// import.
func doubles() []string {
	return []string{"lab/engine", "lab/cluster", "lab/workload", "lab/golden", "router/source/sourcetest", "router/routertest", "publisher/publishertest"}
}

// testsWhole reports whether the tests of a layer run the whole that the layer is a part
// of: sources and the API are tested with a router between them.
func testsWhole(layer, to string) bool {
	return within(to, "router") && (within(layer, "router/source") || within(layer, "router/api"))
}

var testKitRule = rule{
	name:   "test packages stay out of the product",
	reason: "a fault injector or a test double that the product links is a switch that somebody can leave on",
	check: func(t *tree) []problem {
		return perFile(func(s *source, found report) {
			for p, pos := range s.imports {
				kit := within(p, t.module) && strings.HasSuffix(p, "test")
				if kit && !within(s.path, "lab") && !strings.HasSuffix(s.dir(), "test") {
					found(pos, "%s must not import %s", s.dir(), strings.TrimPrefix(p, t.module+"/"))
				}
				if p == "testing" && !within(s.path, "lab") && !strings.HasSuffix(s.dir(), "test") {
					found(pos, "%s imports testing: want a package whose name ends in test", s.dir())
				}
			}
		}, noTest)(t)
	},
}

// hook is a fault hook in the product that stays, and why.
type hook struct{ name, reason string }

// hooks lists the methods and fields of the product that are documented as for tests; see
// docs/decisions/fault-hooks-are-two.md.
func hooks() []hook {
	return []hook{
		{"blockmgr.Abandon", "the stress harness ends a manager in its own process as kill -9 would; the state to drop is the manager's"},
	}
}

var forTests = regexp.MustCompile(`(?i)\bfor (the |fault )?tests?\b`)

var hookRule = rule{
	name:   "nothing in the product is for tests",
	reason: "a method that only tests call is a state that the product never has; tests have export_test.go, and kits have packages whose names end in test",
	check: perFile(func(s *source, found report) {
		if within(s.path, "lab") || within(s.path, "interop") || strings.HasSuffix(s.dir(), "test") {
			return
		}
		for n := range ast.Preorder(s.syntax) {
			var name string
			var doc *ast.CommentGroup
			switch n := n.(type) {
			case *ast.FuncDecl:
				name, doc = n.Name.Name, n.Doc
			case *ast.Field:
				if len(n.Names) > 0 {
					name, doc = n.Names[0].Name, n.Doc
				}
			}
			known := slices.ContainsFunc(hooks(), func(h hook) bool { return h.name == s.dir()+"."+name })
			if doc != nil && !known && forTests.MatchString(strings.Join(strings.Fields(doc.Text()), " ")) {
				found(n.Pos(), "%s is documented as for tests", name)
			}
		}
	}, noTest, written),
}

// pure lists the packages that only compute.
func pure() []string {
	return []string{"internal/kv", "internal/kvevent", "internal/engineevent", "internal/msgpack", "layout"}
}

// timed lists the pure packages that are told the time, and must not ask for it.
func timed() []string { return []string{"consolidator/sequence"} }

var pureRule = rule{
	name:   "pure packages do no I/O and do not log",
	reason: "identities, codecs and geometry are values and functions: they can be called anywhere and tested without a world around them",
	check: perFile(func(s *source, found report) {
		timed := slices.Contains(timed(), s.dir())
		if !timed && !slices.Contains(pure(), s.dir()) {
			return
		}
		banned := []string{"os", "net", "syscall", "time", "log", "go.uber.org/zap", "golang.org/x/sys"}
		for p, pos := range s.imports {
			if !(p == "time" && timed) && slices.ContainsFunc(banned, func(b string) bool { return within(p, b) }) {
				found(pos, "%s must not import %s", s.dir(), p)
			}
		}
		clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}
		for x, sel := range selectors(s.syntax) {
			if x == "time" && slices.Contains(clock, sel.Sel.Name) {
				found(sel.Pos(), "%s must not call time.%s", s.dir(), sel.Sel.Name)
			}
		}
	}, noTest),
}

// within reports whether the slash-separated path p is dir or lies below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
