package kvevent

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// AppendDynamoQuery appends q as Dynamo 1.6 writes it: a map of worker_id,
// dp_rank, start_event_id, end_event_id, supports_tree_dump_failed and kind, for
// which an empty Kind stands for DynamoRecovery.
func AppendDynamoQuery(dst []byte, q *DynamoQuery) []byte {
	kind := q.Kind
	if kind == "" {
		kind = DynamoRecovery
	}
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
	// newest event that the source had made, 0 when the answer does not say.
	Reply *QueryReply
	// Skipped counts events left out of the answer because they speak of an owner
	// or a residency domain that is not modelled.
	Skipped int
	// Final marks the last item.
	Final bool
}

// DecodeDynamoItem decodes an item as AppendDynamoReply and AppendDynamoFinal
// write it; the result owns its memory. Keys that are not known are skipped. An
// event that cannot be decoded is an error of the whole, because an answer with
// a hole in it is void.
func DecodeDynamoItem(b []byte) (DynamoItem, error) {
	var item DynamoItem
	c := msgpack.NewReader(b)
	for range c.Map() {
		key := c.Text()
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
		if c.Err != nil {
			return DynamoItem{}, fmt.Errorf("recovery answer: %.64q: %w", key, c.Err)
		}
	}
	c.End()
	if c.Err != nil {
		return DynamoItem{}, fmt.Errorf("recovery answer: %w", c.Err)
	}
	return item, nil
}

// readDynamoReply reads a map with the kind of the answer as its only key.
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

// readDynamoFields reads the fields of the answers, each of which has some of them.
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
