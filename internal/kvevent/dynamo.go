package kvevent

import (
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// ClearReach says what a cleared event of Dynamo's form takes along.
type ClearReach uint8

const (
	// ClearAll: everything the worker rank holds, at once, whatever else the reader
	// waits for. It is written by leaving the residency domain out.
	ClearAll ClearReach = iota
	// ClearWorker: what the worker itself holds, in the order of event ids. It is what
	// Dynamo's own workers write.
	ClearWorker
)

// AppendDynamoEnvelope appends e as Dynamo 1.6 writes it: as AppendEnvelope does,
// with a residency domain in every event, except in cleared ones that reach
// everything. All events must be of workers.
func AppendDynamoEnvelope(dst []byte, e *Envelope, reach ClearReach) []byte {
	topic := e.Topic
	if topic == "" {
		topic = Topic
	}
	dst = appendEnvelopeHead(dst, e.PublisherID, e.Sequence, e.PublishedAt, topic)
	return appendAsBin(dst, func(dst []byte) []byte { return appendDynamoEvents(dst, e.Events, reach) })
}

// appendEnvelopeHead appends an envelope up to the value of its payload.
func appendEnvelopeHead(dst []byte, publisher, sequence, publishedAt uint64, topic string) []byte {
	dst = msgp.AppendMapHeader(dst, 5)
	dst = appendUint(dst, "publisher_id", publisher)
	dst = appendUint(dst, "sequence", sequence)
	dst = appendUint(dst, "published_at", publishedAt)
	dst = msgp.AppendString(dst, "topic")
	dst = msgp.AppendString(dst, topic)
	return msgp.AppendString(dst, "payload")
}

// appendAsBin appends what body appends as one value of bytes. Their length comes
// first and its own size depends on it, so it is put in front afterwards.
func appendAsBin(dst []byte, body func([]byte) []byte) []byte {
	mark := len(dst)
	dst = body(dst)
	var head [5]byte
	return slices.Insert(dst, mark, msgp.AppendBytesHeader(head[:0], uint32(len(dst)-mark))...)
}

func appendDynamoEvents(dst []byte, events []RouterEvent, reach ClearReach) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(events)))
	for i := range events {
		dst = appendDynamoEvent(dst, &events[i], reach)
	}
	return dst
}

// appendDynamoEvent appends {worker_id, storage_tier, residency_domain, event}.
func appendDynamoEvent(dst []byte, e *RouterEvent, reach ClearReach) []byte {
	domain := e.Kind != Cleared || reach == ClearWorker
	keys := uint32(3)
	if domain {
		keys = 4
	}
	dst = msgp.AppendMapHeader(dst, keys)
	dst = appendUint(dst, "worker_id", e.Owner.ID)
	dst = msgp.AppendString(dst, "storage_tier")
	dst = msgp.AppendString(dst, e.Tier.String())
	if domain {
		dst = msgp.AppendString(dst, "residency_domain")
		dst = msgp.AppendString(dst, "worker")
	}
	dst = msgp.AppendString(dst, "event")
	dst = msgp.AppendMapHeader(dst, 3)
	dst = appendUint(dst, "event_id", e.ID)
	dst = msgp.AppendString(dst, "data")
	dst = appendData(dst, e)
	return appendUint(dst, "dp_rank", uint64(e.Owner.Rank))
}
