// Package kvevent is the event model and its codecs: what engines say about
// their KV caches, and what Blockyard says about all tiers.
//
// There are two directions and two models:
//
//   - In: EngineBatch and EngineEvent, decoded from the ZMQ streams of vLLM,
//     SGLang and TensorRT-LLM by Decoder. Hashes there are the engine's own.
//   - Out: RouterEvent, one change of residency of one owner in one tier, with
//     SequenceHashes only. It travels in an Envelope, whose bytes are those of
//     NVIDIA Dynamo's event plane (payload as an array of events, Dynamo 1.4 and
//     later) with one key more for pools. Announcement, QueryRequest and
//     QueryReply are the frames with which a consumer finds publishers, checks
//     that it has lost nothing, and asks for what it lost.
//
// Guarantees: decoders never panic and never read past their input, whatever
// the bytes; they allocate nothing per block once their buffers have grown; one
// bad event does not lose the rest of its batch, and is kept as a BadEvent, with
// the reason and its first bytes. Encoders write the shortest
// msgpack form of every integer, so that equal values are equal bytes.
//
// Ownership: decoded values borrow from the destination they were decoded into
// and from nothing else; the input may be reused after Decode returns. A
// Decoder is for one goroutine.
package kvevent
