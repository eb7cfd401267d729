package prom

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Process adds the metrics of the process to r: those of Go and of the operating system, and
// blockyard_build_info with the version of the program.
func Process(r prometheus.Registerer, version string) {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "blockyard_build_info", Help: "Version, commit and Go version of the program. The value is 1.",
		ConstLabels: prometheus.Labels{"version": cmp.Or(version, "devel"), "revision": revision(), "goversion": runtime.Version()},
	})
	build.Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// revision returns the commit that the build recorded, "unknown" without one.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "unknown"
}

// Deprecated returns the help of a metric that has the name name in this release and the next
// one is to lack. Tests and docs/watch.md find the old names by this text.
func Deprecated(name string) string {
	return "Deprecated, ends with the next release: use " + name + "."
}
