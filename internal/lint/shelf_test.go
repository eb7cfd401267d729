package lint

import (
	"go/ast"
	"path"
	"slices"
	"strings"
)

// library says where a third-party module may be imported. A place that ends in
// a slash is a directory with everything below it, any other a path.Match
// pattern for one file. Test files may import every library.
type library struct {
	module string
	places []string
	// sealed: its types must not appear in exported declarations, but for the packages of
	// edges().
	sealed bool
}

// shelf lists every direct dependency.
func shelf() []library {
	anywhere := []string{"*/"}
	testsOnly := []string(nil)
	return []library{
		{"github.com/pebbe/zmq4", []string{"consolidator/", "publisher/zmqsink/", "lab/", "internal/command/program.go"}, true},
		{"github.com/nats-io/nats.go", []string{"publisher/nats/", "router/source/nats/", "router/source/sourcetest/", "internal/natsauth/"}, true},
		{"github.com/nats-io/nkeys", []string{"internal/natsauth/"}, true},
		{"github.com/nats-io/nats-server/v2", []string{"publisher/nats/embedded.go", "router/source/sourcetest/"}, true},
		{"github.com/prometheus/client_golang", []string{"agent/metrics*.go", "router/metrics/", "router/scrape.go", "internal/metric/prom/", "blockmgr/kvbm/kvbmprom/", "examples/"}, true},
		{"github.com/NVIDIA/go-nvml", []string{"internal/gpu/"}, true},
		{"github.com/cenkalti/backoff/v5", []string{"internal/backoff/"}, false}, // kept, without dependencies of its own
		{"github.com/envoyproxy/go-control-plane/envoy", []string{"router/frontend/extproc/"}, true},
		{"go.opentelemetry.io/otel", []string{"router/frontend/spans/"}, true},
		{"go.opentelemetry.io/otel/sdk", []string{"router/frontend/spans/"}, true},
		{"go.opentelemetry.io/otel/trace", []string{"router/frontend/spans/"}, true},
		{"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp", []string{"router/frontend/spans/"}, true},
		{"google.golang.org/grpc", []string{"router/frontend/extproc/"}, true},
		{"google.golang.org/protobuf", []string{"router/frontend/extproc/", "router/frontend/spans/spanstest/"}, true},
		{"go.opentelemetry.io/proto/otlp", []string{"router/frontend/spans/spanstest/"}, true},
		{"go.yaml.in/yaml/v3", []string{"internal/command/configfile/", "router/policyfile/", "agent/limits/"}, false}, // the YAML organization's; errors with lines
		{"github.com/gdamore/tcell/v2", []string{"internal/command/top/"}, true},                                       // fewer modules than bubbletea, and a simulated screen
		{"github.com/alecthomas/kong", []string{"internal/command/", "lab/cli/"}, false},
		{"github.com/tinylib/msgp", []string{"internal/kv/", "internal/kvevent/", "internal/engineevent/", "internal/msgpack/msgpacktest/", "internal/proto/", "router/remote/", "router/replica/"}, false},
		{"github.com/zeebo/xxh3", anywhere, false},
		{"go.uber.org/zap", anywhere, false},
		{"golang.org/x/sync", anywhere, false},
		{"golang.org/x/sys", anywhere, false},
		{"github.com/cockroachdb/datadriven", testsOnly, false},
		{"github.com/google/go-cmp", testsOnly, false},
		{"go.uber.org/goleak", testsOnly, false},
		{"pgregory.net/rapid", testsOnly, false},
	}
}

func (l *library) allows(s *source) bool {
	return s.isTest() || slices.ContainsFunc(l.places, func(place string) bool {
		if place == "*/" {
			return true
		}
		if strings.HasSuffix(place, "/") {
			return strings.HasPrefix(s.path, place)
		}
		ok, err := path.Match(place, s.path)
		return err == nil && ok
	})
}

// findLibrary is the shelf's entry for an import path, or nil.
func findLibrary(p string) *library {
	all := shelf()
	i := slices.IndexFunc(all, func(l library) bool { return within(p, l.module) })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// edges lists the packages that exist to hand a sealed library's types to their callers.
func edges() []string {
	return []string{"internal/metric/prom", "blockmgr/kvbm/kvbmprom", "internal/natsauth", "router/metrics"}
}

var shelfRule = rule{
	name:   "libraries stay in their place",
	reason: "a transport, a metrics library or a driver can be replaced only while few files know it; a new dependency is a decision, not a side effect",
	check: func(t *tree) []problem {
		return perFile(func(s *source, found report) {
			for p, pos := range s.imports {
				if thirdParty := strings.Contains(strings.Split(p, "/")[0], "."); !thirdParty || within(p, t.module) {
					continue
				}
				switch l := findLibrary(p); {
				case l == nil:
					found(pos, "%s is not on the shelf: add it to shelf() with the files that may use it", p)
				case !l.allows(s):
					found(pos, "%s may be imported only in %s and in tests", p, strings.Join(l.places, ", "))
				}
			}
		})(t)
	},
}

var leakRule = rule{
	name:   "library types stay inside",
	reason: "an exported declaration that mentions a ZMQ, NATS, Prometheus or NVML type makes every caller depend on that library",
	check: perFile(func(s *source, found report) {
		if slices.Contains(edges(), s.dir()) || slices.Contains(doubles(), s.dir()) {
			return
		}
		sealed := make(map[string]string) // local name → import path
		for p := range s.imports {
			if l := findLibrary(p); l != nil && l.sealed {
				sealed[s.localName(p)] = p
			}
		}
		for _, d := range s.syntax.Decls {
			for _, part := range visibleParts(d) {
				for n := range ast.Preorder(part) {
					if sel, ok := n.(*ast.SelectorExpr); ok {
						if x, ok := sel.X.(*ast.Ident); ok && sealed[x.Name] != "" {
							found(sel.Pos(), "exported declaration uses %s.%s of %s", x.Name, sel.Sel.Name, sealed[x.Name])
						}
					}
				}
			}
		}
	}, noTest, written, noCommand),
}

// visibleParts returns the type expressions of a declaration that callers of the package can
// see: signatures of exported functions and methods, exported fields and methods of exported
// types, types of exported variables and constants.
func visibleParts(d ast.Decl) []ast.Node {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && receiverExported(d) {
			return []ast.Node{d.Type}
		}
	case *ast.GenDecl:
		var parts []ast.Node
		for _, spec := range d.Specs {
			parts = append(parts, visibleSpecParts(spec)...)
		}
		return parts
	}
	return nil
}

func visibleSpecParts(spec ast.Spec) []ast.Node {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		if spec.Type != nil && slices.ContainsFunc(spec.Names, (*ast.Ident).IsExported) {
			return []ast.Node{spec.Type}
		}
	case *ast.TypeSpec:
		if !spec.Name.IsExported() {
			return nil
		}
		st, ok := spec.Type.(*ast.StructType)
		if !ok {
			return []ast.Node{spec.Type}
		}
		var parts []ast.Node
		for _, field := range st.Fields.List {
			if len(field.Names) == 0 || slices.ContainsFunc(field.Names, (*ast.Ident).IsExported) {
				parts = append(parts, field.Type)
			}
		}
		return parts
	}
	return nil
}

// receiverExported reports whether d is a function, or a method of an exported
// type.
func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	exported := false
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			exported = id.IsExported()
			return false
		}
		return true
	})
	return exported
}
