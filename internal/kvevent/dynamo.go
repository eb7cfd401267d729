package kvevent

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// ClearReach says what a cleared event in Dynamo's form drops.
type ClearReach uint8

const (
	// ClearAll drops everything that the worker rank holds at once, whatever else
	// the reader waits for. It is encoded by leaving the residency domain out.
	ClearAll ClearReach = iota
	// ClearWorker drops what the worker itself holds, in the order of event ids.
	// Dynamo's own workers write it.
	ClearWorker
)

// AppendDynamoEnvelope appends e as Dynamo 1.6 writes it: as AppendEnvelope does,
// with a residency domain in every event except cleared ones with ClearAll. All
// events must be of workers.
func AppendDynamoEnvelope(dst []byte, e *Envelope, reach ClearReach) []byte {
	topic := cmp.Or(e.Topic, Topic)
	dst = appendEnvelopeHead(dst, e.PublisherID, e.Sequence, e.PublishedAt, topic)
	return appendAsBin(dst, func(dst []byte) []byte { return appendDynamoEvents(dst, e.Events, reach) })
}

// appendEnvelopeHead appends an envelope up to the value of its last key, payload, which the caller
// appends.
func appendEnvelopeHead(dst []byte, publisher, sequence, publishedAt uint64, topic string) []byte {
	dst = msgp.AppendMapHeader(dst, 5)
	dst = appendUint(dst, "publisher_id", publisher)
	dst = appendUint(dst, "sequence", sequence)
	dst = appendUint(dst, "published_at", publishedAt)
	dst = msgp.AppendString(dst, "topic")
	dst = msgp.AppendString(dst, topic)
	return msgp.AppendString(dst, "payload")
}

// appendAsBin appends what body appends as one value of bytes. The length precedes
// the bytes and its size depends on the length, so the length is inserted
// afterwards.
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

// appendDynamoEvent appends an event as {worker_id, storage_tier, residency_domain, event}. The
// domain is "worker". A cleared event has it only with ClearWorker, because Dynamo clears at once
// without it.
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

// QueryDumpFailed is Dynamo's answer that a dump cannot be served now. The asker
// keeps what it has and tries again. The native stream does not have it.
const QueryDumpFailed QueryKind = "tree_dump_failed"

// DynamoQuery is the question of a Dynamo router to a source of KV events.
type DynamoQuery struct {
	QueryRequest
	Worker kv.Worker
	// KnowsDumpFailed says that the asker understands QueryDumpFailed.
	KnowsDumpFailed bool
	// Kind is the kind of question. Empty means "recovery". "?" stands for a
	// request of another shape, which is never answered with events.
	Kind string
}

// DynamoRecovery is the kind of the queries that this package models.
const DynamoRecovery = "recovery"

// DecodeDynamoQuery decodes a request: a map of worker_id, dp_rank, start_event_id,
// end_event_id, supports_tree_dump_failed and kind. Unknown keys are skipped. All
// keys but worker_id may be absent.
func DecodeDynamoQuery(b []byte) (DynamoQuery, error) {
	q := DynamoQuery{Kind: DynamoRecovery}
	err := decodeMap(b, "recovery query", func(c *msgpack.Reader, key []byte) {
		switch string(key) {
		case "worker_id":
			q.Worker.ID = kv.WorkerID(c.Uint64())
		case "dp_rank":
			if !c.Null() {
				q.Worker.Rank = kv.DPRank(c.Uint(math.MaxUint32))
			}
		case "start_event_id":
			q.StartID, q.HasStart = c.OptionalUint64()
		case "end_event_id":
			q.EndID, q.HasEnd = c.OptionalUint64()
		case "supports_tree_dump_failed":
			q.KnowsDumpFailed = c.Boolean()
		case "kind":
			q.Kind = readDynamoQueryKind(c)
		default:
			c.Skip()
		}
	}, "worker_id")
	if err != nil {
		return DynamoQuery{}, err
	}
	return q, nil
}

// readDynamoQueryKind reads a kind, which is a name or a map with more to say.
func readDynamoQueryKind(c *msgpack.Reader) string {
	if c.Peek() == msgpack.Text {
		return string(c.Text())
	}
	c.Skip()
	return "?"
}

// AppendDynamoReply appends the answer r to q as one item of a response stream:
// {"data": {variant: fields}, "complete_final": false}. Cleared events in the
// answer are ClearAll.
func AppendDynamoReply(dst []byte, q *DynamoQuery, r *QueryReply) []byte {
	dst = msgp.AppendMapHeader(dst, 2)
	dst = msgp.AppendString(dst, "data")
	dst = msgp.AppendMapHeader(dst, 1)
	switch r.Kind {
	case QueryEvents:
		dst = msgp.AppendString(dst, "Events")
		dst = msgp.AppendMapHeader(dst, 2)
		dst = appendAnswerEvents(dst, r)
	case QueryTreeDump:
		dst = msgp.AppendString(dst, "TreeDump")
		dst = msgp.AppendMapHeader(dst, 3)
		dst = appendAnswerEvents(dst, r)
		dst = msgp.AppendString(dst, "reset_scope")
		dst = msgp.AppendString(dst, "all")
	case QueryDumpFailed:
		dst = msgp.AppendString(dst, "TreeDumpFailed")
		dst = msgp.AppendMapHeader(dst, 2)
		dst = appendUint(dst, "last_event_id", r.LastEventID)
		dst = msgp.AppendString(dst, "message")
		dst = msgp.AppendString(dst, r.Message)
	case QueryTooNew:
		dst = msgp.AppendString(dst, "TooNew")
		dst = msgp.AppendMapHeader(dst, 3)
		dst = appendUint64OrNil(dst, "requested_start", q.StartID, q.HasStart)
		dst = appendUint64OrNil(dst, "requested_end", q.EndID, q.HasEnd)
		dst = appendUint(dst, "newest_available", r.LastEventID)
	case QueryInvalidRange:
		dst = msgp.AppendString(dst, "InvalidRange")
		dst = msgp.AppendMapHeader(dst, 2)
		dst = appendUint(dst, "start_id", q.StartID)
		dst = appendUint(dst, "end_id", q.EndID)
	default:
		dst = msgp.AppendString(dst, "Error")
		dst = msgp.AppendString(dst, r.Message)
	}
	dst = msgp.AppendString(dst, "complete_final")
	return msgp.AppendBool(dst, false)
}

func appendAnswerEvents(dst []byte, r *QueryReply) []byte {
	dst = msgp.AppendString(dst, "events")
	dst = appendDynamoEvents(dst, r.Events, ClearAll)
	return appendUint(dst, "last_event_id", r.LastEventID)
}

// AppendDynamoFinal appends the item that ends a response stream.
func AppendDynamoFinal(dst []byte) []byte {
	dst = msgp.AppendMapHeader(dst, 1)
	dst = msgp.AppendString(dst, "complete_final")
	return msgp.AppendBool(dst, true)
}

// AppendDynamoQuery appends q as Dynamo 1.6 writes it: a map of worker_id, dp_rank,
// start_event_id, end_event_id, supports_tree_dump_failed and kind. An empty Kind
// means DynamoRecovery.
func AppendDynamoQuery(dst []byte, q *DynamoQuery) []byte {
	kind := cmp.Or(q.Kind, DynamoRecovery)
	dst = msgp.AppendMapHeader(dst, 6)
	dst = appendUint(dst, "worker_id", uint64(q.Worker.ID))
	dst = appendUint(dst, "dp_rank", uint64(q.Worker.Rank))
	dst = appendUint64OrNil(dst, "start_event_id", q.StartID, q.HasStart)
	dst = appendUint64OrNil(dst, "end_event_id", q.EndID, q.HasEnd)
	dst = msgp.AppendString(dst, "supports_tree_dump_failed")
	dst = msgp.AppendBool(dst, q.KnowsDumpFailed)
	dst = msgp.AppendString(dst, "kind")
	return msgp.AppendString(dst, kind)
}

// DynamoItem is one item of the response stream to a DynamoQuery.
type DynamoItem struct {
	// Reply is the answer, nil in an item without one. Its LastEventID is the
	// newest event of the source, 0 when the answer does not say.
	Reply *QueryReply
	// Skipped counts skipped events of an owner or residency domain that is not
	// modelled.
	Skipped int
	// Final marks the last item.
	Final bool
}

// DecodeDynamoItem decodes an item of a response stream. The result owns its
// memory. Unknown keys are skipped. An event that cannot be decoded is an error of
// the whole item, because an answer with a hole is void.
func DecodeDynamoItem(b []byte) (DynamoItem, error) {
	var item DynamoItem
	err := decodeMap(b, "recovery answer", func(c *msgpack.Reader, key []byte) {
		switch string(key) {
		case "data":
			if !c.Null() {
				readDynamoReply(c, &item)
			}
		case "complete_final":
			item.Final = c.Boolean()
		default:
			c.Skip()
		}
	})
	if err != nil {
		return DynamoItem{}, err
	}
	return item, nil
}

// readDynamoReply reads a recovery answer into item.Reply: a map with the kind of the answer as
// its only key and the fields as its value.
func readDynamoReply(c *msgpack.Reader, item *DynamoItem) {
	if n := c.Map(); c.Err == nil && n != 1 {
		c.Fail("an answer of %d kinds, want 1", n)
	}
	item.Reply = new(QueryReply)
	switch name := c.Text(); string(name) {
	case "Events":
		item.Reply.Kind = QueryEvents
	case "TreeDump":
		item.Reply.Kind = QueryTreeDump
	case "TooNew":
		item.Reply.Kind = QueryTooNew
	case "InvalidRange":
		item.Reply.Kind = QueryInvalidRange
	case "TreeDumpFailed":
		item.Reply.Kind = QueryDumpFailed
	case "Error":
		item.Reply.Kind, item.Reply.Message = QueryError, string(c.Text())
		return
	default:
		c.Fail("answer %.64q is not known", name)
		return
	}
	readDynamoFields(c, item)
}

// readDynamoFields reads the fields of a recovery answer into item.Reply. Each kind of answer has
// some of the fields.
func readDynamoFields(c *msgpack.Reader, item *DynamoItem) {
	for range c.Map() {
		switch string(c.Text()) {
		case "events":
			readDynamoEvents(c, item)
		case "last_event_id", "newest_available":
			item.Reply.LastEventID = c.Uint64()
		case "message":
			item.Reply.Message = string(c.Text())
		default:
			c.Skip()
		}
	}
}

// readDynamoEvents appends the events of a recovery answer to item.Reply. It counts well-formed
// events that this version does not model in item.Skipped. A damaged event fails c.
func readDynamoEvents(c *msgpack.Reader, item *DynamoItem) {
	var mem routerMemory
	for i := range c.Array() {
		e, err := decodeRouterEvent(c, &mem)
		switch {
		case err == nil:
			item.Reply.Events = append(item.Reply.Events, e)
		case c.Err == nil:
			item.Skipped++
		default:
			c.Err = fmt.Errorf("event %d: %w", i, err)
			return
		}
	}
}
