package kvevent

import (
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// QueryDumpFailed is Dynamo's answer that a dump cannot be served now: the asker
// keeps what it has and tries again. It is no part of the native stream.
const QueryDumpFailed QueryKind = "tree_dump_failed"

// DynamoQuery is what a Dynamo router asks of a source of KV events.
type DynamoQuery struct {
	QueryRequest
	Worker kv.Worker
	// KnowsDumpFailed says that the asker understands QueryDumpFailed.
	KnowsDumpFailed bool
	// Kind is what is asked for; empty for "recovery", and "?" for a request of
	// another shape, which is never answered with events.
	Kind string
}

// DynamoRecovery is the kind of the queries that this package models.
const DynamoRecovery = "recovery"

// DecodeDynamoQuery decodes a request: a map of worker_id, dp_rank, start_event_id,
// end_event_id, supports_tree_dump_failed and kind. Keys that are not known are
// skipped, and all but worker_id may be absent.
func DecodeDynamoQuery(b []byte) (DynamoQuery, error) {
	q := DynamoQuery{Kind: DynamoRecovery}
	var seen msgpack.Keys
	c := msgpack.NewReader(b)
	for range c.Map() {
		key := c.Text()
		switch string(key) {
		case "worker_id":
			q.Worker.ID = kv.WorkerID(c.Uint64())
			seen.Add(0)
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
		if c.Err != nil {
			return DynamoQuery{}, fmt.Errorf("recovery query: %.64q: %w", key, c.Err)
		}
	}
	seen.Require(c, "worker_id")
	c.End()
	if c.Err != nil {
		return DynamoQuery{}, fmt.Errorf("recovery query: %w", c.Err)
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
// {"data": {variant: fields}, "complete_final": false}. Cleared events among the
// answer's reach everything.
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
