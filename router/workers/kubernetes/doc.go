// Package kubernetes finds the worker servers behind a Service of Kubernetes.
//
//	cluster, err := kubernetes.InCluster()
//	finder, err := kubernetes.Parse("models/llama:http", cluster)
//	d, err := workers.New(workers.Options{Finders: []workers.Finder{finder}})
//
// A Finder lists the EndpointSlices of the Service and watches them. A ready endpoint is a
// server that takes requests. An endpoint that is terminating or not ready is a server that
// finishes its requests. The router's service account needs get, list and watch of
// endpointslices in the API group discovery.k8s.io.
//
// # Guarantees
//
// The servers stay as they were while the API server does not answer. Every list, watch
// event and answer has a limit in bytes and in time. An endpoint of two slices, or of both
// address families, is one server.
//
// # Ownership
//
// A Finder belongs to the goroutine that calls Run. The service account's token is read
// again for each request, because Kubernetes replaces the token.
//
// # Failure
//
// A list or watch that fails is tried again with growing pauses. A watch whose resource
// version is too old (410) begins with a new list. Errors are logged once while they stay
// the same.
package kubernetes
