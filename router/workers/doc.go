// Package workers is the directory of worker servers: inference servers that take requests
// over HTTP, such as vLLM and SGLang.
//
//	spec, err := workers.ParseSpec("http://a:8000,role=decode")
//	d, err := workers.New(workers.Options{Specs: []workers.Spec{spec}, Registry: registry})
//	go d.Run(ctx)
//	served, err := d.Resolve("llama") // what a client's model name means
//
// Servers come from specs, from finders (DNS, Kubernetes) and from the router, which knows
// announced and registered workers. A server that an agent announces is that agent's
// worker: the announcement wins.
//
// # Guarantees
//
// The directory asks each server for its health, models, block size and event endpoints.
// A ready server that nobody announces is registered with the router. Readers get an
// immutable snapshot and take no lock. A Worker never changes after it was published.
//
// A server is ready while its probes succeed. It becomes unhealthy when nobody listens, when
// its engine is dead, after 3 slow probes in a row, or after 5 failed requests in a row.
//
// # Ownership and limits
//
// Run owns the servers and ends their goroutines, one for each server. A directory has at
// most 4,096 workers, a worker at most 1,024 models and 1,024 ranks. Every answer of a
// server has a limit in bytes and in time.
//
// # Failure
//
// A server that fails stays in the directory and is probed with growing pauses. What a
// server lacks, such as events, is logged once by the name of the server's flag.
package workers
