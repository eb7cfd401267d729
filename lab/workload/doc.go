// Package workload makes requests for the demo and the benchmarks: invented ones shaped
// like production traffic, or those of a recorded trace in Mooncake's format.
//
//	requests, err := workload.Generate(workload.Options{Seed: 1, Requests: 400})
//	requests, err = workload.ReadMooncakeFile("trace.jsonl", 1000)
//
// A Request holds no tokens but a recipe for them: pieces, each a stream number and a
// length. The tokens of a piece are a pure function of stream and index. Equal pieces
// are equal tokens in every run and on every machine. A workload of a billion tokens
// costs a few bytes a request until a prompt is built.
//
// Generate is a pure function of its Options. ReadMooncake returns every request, or an
// error that names file, line, field and value. Equal hash ids give equal tokens.
//
// Only ReadMooncake and ReadMooncakeFile do I/O. Requests are plain values that nobody
// changes: share them freely.
package workload
