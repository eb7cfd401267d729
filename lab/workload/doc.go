// Package workload makes the requests that the demo and the benchmarks send:
// either invented ones shaped like production traffic, or those of a recorded
// trace in Mooncake's format.
//
// Both come out as one model, Request, which holds no tokens but a recipe for
// them: pieces, each a stream number and a length. The tokens of a piece are a
// pure function of stream and index, so that equal pieces are equal tokens in
// every run and on every machine, and a workload of a billion tokens costs a few
// bytes per request until a prompt is built.
//
// Guarantees: Generate is a pure function of its Options, seed included.
// ReadMooncake either returns every request asked for or an error that names
// file, line, field and value; equal hash ids give equal tokens, and therefore
// requests whose ids start alike have prompts that start alike.
//
// Nothing here does I/O but ReadMooncake, which reads what it is given, and
// ReadMooncakeFile. Requests are plain values: share them freely, once made they
// are not changed.
package workload
