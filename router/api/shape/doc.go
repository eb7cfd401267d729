// Package shape has what the HTTP interfaces in Dynamo's shapes have in common: bodies, errors,
// names of partitions, overlap summaries and dumps.
//
//	j := shape.New(shape.Options{Counters: counters, Log: log})
//	h := j.Handler(map[string]http.HandlerFunc{"POST /query": query})
//
// A partition is a model in a routing group. For the router it is a model of its own: ModelOf.
//
// A JSON bounds the bytes of the bodies in progress and refuses requests that a browser sends
// for another site. Its methods may be called from any goroutine.
package shape
