// Package extproc lets Envoy, and gateways of the Gateway API, forward requests that the
// front door decides. It is the endpoint picker of an InferencePool.
//
//	server, err := extproc.New(extproc.Options{Door: door, Workers: directory})
//	err = server.Serve(ctx, listener)
//
// Envoy sends headers and body of a request over gRPC (ext_proc). The Door reads, prepares
// and books the request as one of its own clients'. The reply names the worker in the header
// and in the metadata x-gateway-destination-endpoint, other workers after it as fallbacks.
// Then Envoy sends the worker's answer through the same stream, and the Door follows it:
// first token, output blocks, usage, end. docs/envoy.md has configurations of Envoy.
//
// Guarantees:
//
//   - A booking is freed exactly once, whatever ends the stream; the Door does it.
//   - An answer reaches the client as the worker sent it, without the usage event that only
//     the Door asked for.
//   - Errors of the Door reach the client with its status and in OpenAI's shape.
//   - A filter whose modes cannot work gets status 500 with the setting to change.
//
// Bounds: streams in progress, the size of a message, the body of a request (the Door's), and
// the part of an answer that the Door has not passed on yet.
//
// Ownership: the Door and the directory belong to the caller and outlive the Server. Serve
// closes its listener.
//
// Failure: a stream that breaks ends its request as a client that leaves does.
package extproc
