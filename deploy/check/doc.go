// Package check tests the files of deploy/: "make deploy-check". It is a module of its own,
// so that Blockyard's binaries link neither Helm nor Kubernetes.
//
// The tests lint the chart with Helm's own linter, render it with each values file of
// deploy/helm/blockyard/ci, and decode every rendered object strictly into the types of
// Kubernetes and of the Prometheus Operator: an unknown or misspelt field fails. They load the
// Compose file with Compose's own loader, parse the queries of dashboards and alerts with
// Prometheus' own parser and compare them with the metrics that the programs expose, and verify
// the systemd units with systemd-analyze where there is one. The blockyard of BLOCKYARD_BIN parses
// the arguments, settings and variables of every container and unit.
package check
