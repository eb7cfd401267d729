// Package kvevent has the messages between publishers and routers: changes of residency,
// announcements, queries and loads, with their codecs and subjects.
//
//	b := kvevent.AppendEnvelope(nil, &kvevent.Envelope{PublisherID: id, Events: events})
//	var d kvevent.EnvelopeDecoder
//	err := d.Decode(b, &envelope)
//
// A RouterEvent is one change of residency of one owner in one tier, with
// SequenceHashes only. Events travel in an Envelope. The bytes of an Envelope are
// those of NVIDIA Dynamo's event plane with one more key for pools. With Announcement,
// QueryRequest and QueryReply a consumer finds publishers, notices lost events and queries for
// them. docs/events.md has every message.
//
// dynamo.go and activeload.go hold the messages of Dynamo's routers and workers that
// no native publisher sends. The engines' own events are in package engineevent.
//
// Guarantees: decoders never panic and never read past their input. They allocate
// nothing per block once their buffers have grown. A bad event does not lose the
// rest of an Envelope, but makes a QueryReply void. Encoders write the shortest
// form of every integer, so that equal values are equal bytes.
//
// Ownership: a decoded value borrows from the destination of Decode only. The input
// may be reused after Decode. A decoder is for one goroutine.
package kvevent
