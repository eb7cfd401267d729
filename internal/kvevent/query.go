package kvevent

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// AppendQueryRequest appends q as a map of start_event_id and end_event_id,
// each unsigned or nil; with MaxChunks also of max_chunks, dump_id and first_chunk,
// each unsigned.
func AppendQueryRequest(dst []byte, q *QueryRequest) []byte {
	if q.MaxChunks == 0 {
		dst = msgp.AppendMapHeader(dst, 2)
	} else {
		dst = msgp.AppendMapHeader(dst, 5)
		dst = appendUint(dst, "max_chunks", uint64(q.MaxChunks))
		dst = appendUint(dst, "dump_id", q.DumpID)
		dst = appendUint(dst, "first_chunk", uint64(q.FirstChunk))
	}
	dst = appendUint64OrNil(dst, "start_event_id", q.StartID, q.HasStart)
	return appendUint64OrNil(dst, "end_event_id", q.EndID, q.HasEnd)
}

// DecodeQueryRequest decodes what AppendQueryRequest writes. An absent key is
// nil; keys that are not known are skipped, and those of a part of an answer are
// where max_chunks is 0.
func DecodeQueryRequest(b []byte) (QueryRequest, error) {
	var q QueryRequest
	c := cursor{buf: b}
	for range c.mapping() {
		key := c.text()
		switch string(key) {
		case "start_event_id":
			q.StartID, q.HasStart = c.optionalUint64()
		case "end_event_id":
			q.EndID, q.HasEnd = c.optionalUint64()
		case "max_chunks":
			q.MaxChunks = c.uint32()
		case "dump_id":
			q.DumpID = c.uint64()
		case "first_chunk":
			q.FirstChunk = c.uint32()
		default:
			c.skip()
		}
		if c.err != nil {
			return QueryRequest{}, fmt.Errorf("query request: %.64q: %w", key, c.err)
		}
	}
	c.end()
	if c.err != nil {
		return QueryRequest{}, fmt.Errorf("query request: %w", c.err)
	}
	if q.MaxChunks == 0 {
		q.DumpID, q.FirstChunk = 0, 0
	}
	return q, nil
}

func (c *cursor) optionalUint64() (v uint64, has bool) {
	if c.null() {
		return 0, false
	}
	return c.uint64(), true
}

// AppendQueryReply appends r as a map with these keys, in this order:
//
//	dump_id        unsigned; absent if 0
//	publisher_id   unsigned
//	kind           "events", "tree_dump", "too_new", "invalid_range" or "error"
//	last_event_id  unsigned
//	chunk          unsigned, from 0
//	final          boolean
//	message        string
//	events         array of router events, as in an envelope
func AppendQueryReply(dst []byte, r *QueryReply) []byte {
	if r.DumpID == 0 {
		dst = msgp.AppendMapHeader(dst, 7)
	} else {
		dst = msgp.AppendMapHeader(dst, 8)
		dst = appendUint(dst, "dump_id", r.DumpID)
	}
	dst = appendUint(dst, "publisher_id", r.PublisherID)
	dst = msgp.AppendString(dst, "kind")
	dst = msgp.AppendString(dst, string(r.Kind))
	dst = appendUint(dst, "last_event_id", r.LastEventID)
	dst = appendUint(dst, "chunk", uint64(r.Chunk))
	dst = msgp.AppendString(dst, "final")
	dst = msgp.AppendBool(dst, r.Final)
	dst = msgp.AppendString(dst, "message")
	dst = msgp.AppendString(dst, r.Message)
	dst = msgp.AppendString(dst, "events")
	return appendRouterEvents(dst, r.Events)
}

// DecodeQueryReply decodes what AppendQueryReply writes; the result owns its
// memory. Keys that are not known are skipped. Any event that cannot be decoded
// is an error of the whole, because an answer with a hole in it is void.
func DecodeQueryReply(b []byte) (QueryReply, error) {
	var r QueryReply
	var mem routerMemory
	var seen fieldSet
	c := cursor{buf: b}
	for range c.mapping() {
		key := c.text()
		switch string(key) {
		case "publisher_id":
			r.PublisherID = c.uint64()
			seen.add(0)
		case "dump_id":
			r.DumpID = c.uint64()
		case "kind":
			r.Kind = c.queryKind()
			seen.add(1)
		case "last_event_id":
			r.LastEventID = c.uint64()
		case "chunk":
			r.Chunk = c.uint32()
			seen.add(2)
		case "final":
			r.Final = c.boolean()
			seen.add(3)
		case "message":
			r.Message = string(c.text())
		case "events":
			r.events(&c, &mem)
		default:
			c.skip()
		}
		if c.err != nil {
			return QueryReply{}, fmt.Errorf("query reply: %.64q: %w", key, c.err)
		}
	}
	seen.require(&c, "publisher_id", "kind", "chunk", "final")
	c.end()
	if c.err != nil {
		return QueryReply{}, fmt.Errorf("query reply: %w", c.err)
	}
	return r, nil
}

// events reads the router events of a reply.
func (r *QueryReply) events(c *cursor, mem *routerMemory) {
	r.Events = nil
	for i := range c.array() {
		e, err := decodeRouterEvent(c, mem)
		if err != nil {
			c.err = fmt.Errorf("event %d: %w", i, err)
			return
		}
		r.Events = append(r.Events, e)
	}
}

func (c *cursor) queryKind() QueryKind {
	name := c.text()
	for _, k := range []QueryKind{QueryEvents, QueryTreeDump, QueryTooNew, QueryInvalidRange, QueryError} {
		if string(name) == string(k) {
			return k
		}
	}
	c.fail("kind %.64q is not known", name)
	return ""
}
