// Package engineevent has the events that inference engines publish about their KV caches: the
// batches of vLLM, SGLang and TensorRT-LLM, in every encoding they have had.
//
//	var d engineevent.Decoder
//	var b engineevent.Batch
//	err := d.Decode(payload, &b)
//	for i := range b.Events {
//		// b.Events[i] is a stored, removed or cleared event
//	}
//
// Hashes are the engine's own. Package consolidator turns them into the hashes of
// package kvevent.
//
// Guarantees: Decode never panics and never reads past its input. It allocates
// nothing per block once the Batch has grown. An event that cannot be decoded is
// kept in Batch.Bad with the reason and its first bytes, and the rest of the batch
// stands. Every extra key of a block becomes part of the event, so that different
// contents never get one name. AppendBatch writes the form of vLLM 0.26 and later.
//
// Ownership: a Batch is reused from one Decode to the next and borrows nothing from
// the payload. A Decoder is for one goroutine and keeps a bounded table of strings.
package engineevent
