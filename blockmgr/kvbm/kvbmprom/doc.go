// Package kvbmprom registers KVBM's metrics with Prometheus, for programs that embed the
// block manager.
//
//	registry := prometheus.NewRegistry()
//	cfg.Runtime.Metrics = kvbmprom.New(registry)
//
// The registry is the caller's. A metric that is registered already, such as by a second
// manager on the same registry, is an error of kvbm.New. The metrics stay registered
// when the manager ends.
package kvbmprom
