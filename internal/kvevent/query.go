package kvevent

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// AppendQueryRequest appends q as a map of start_event_id and end_event_id, each
// unsigned or nil. With MaxChunks the map also has max_chunks, dump_id and
// first_chunk, each unsigned.
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

// DecodeQueryRequest decodes a query request. An absent key is nil. Unknown keys
// are skipped. dump_id and first_chunk are ignored where max_chunks is 0.
func DecodeQueryRequest(b []byte) (QueryRequest, error) {
	var q QueryRequest
	err := decodeMap(b, "query request", func(c *msgpack.Reader, key []byte) {
		switch string(key) {
		case "start_event_id":
			q.StartID, q.HasStart = c.OptionalUint64()
		case "end_event_id":
			q.EndID, q.HasEnd = c.OptionalUint64()
		case "max_chunks":
			q.MaxChunks = c.Uint32()
		case "dump_id":
			q.DumpID = c.Uint64()
		case "first_chunk":
			q.FirstChunk = c.Uint32()
		default:
			c.Skip()
		}
	})
	if err != nil {
		return QueryRequest{}, err
	}
	if q.MaxChunks == 0 {
		q.DumpID, q.FirstChunk = 0, 0
	}
	return q, nil
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

// DecodeQueryReply decodes a query reply. The result owns its memory. Unknown keys
// are skipped. An event that cannot be decoded is an error of the whole reply,
// because an answer with a hole is void.
func DecodeQueryReply(b []byte) (QueryReply, error) {
	var r QueryReply
	var mem routerMemory
	err := decodeMap(b, "query reply", func(c *msgpack.Reader, key []byte) {
		switch string(key) {
		case "publisher_id":
			r.PublisherID = c.Uint64()
		case "dump_id":
			r.DumpID = c.Uint64()
		case "kind":
			r.Kind = readQueryKind(c)
		case "last_event_id":
			r.LastEventID = c.Uint64()
		case "chunk":
			r.Chunk = c.Uint32()
		case "final":
			r.Final = c.Boolean()
		case "message":
			r.Message = string(c.Text())
		case "events":
			r.events(c, &mem)
		default:
			c.Skip()
		}
	}, "publisher_id", "kind", "chunk", "final")
	if err != nil {
		return QueryReply{}, err
	}
	return r, nil
}

// events reads the router events of a reply into r.Events, whose slices lie in mem. Any event that
// cannot be decoded fails c.
func (r *QueryReply) events(c *msgpack.Reader, mem *routerMemory) {
	r.Events = nil
	for i := range c.Array() {
		e, err := decodeRouterEvent(c, mem)
		if err != nil {
			c.Err = fmt.Errorf("event %d: %w", i, err)
			return
		}
		r.Events = append(r.Events, e)
	}
}

// readQueryKind reads the kind of a reply. An unknown kind fails c.
func readQueryKind(c *msgpack.Reader) QueryKind {
	name := c.Text()
	for _, k := range []QueryKind{QueryEvents, QueryTreeDump, QueryTooNew, QueryInvalidRange, QueryError} {
		if string(name) == string(k) {
			return k
		}
	}
	c.Fail("kind %.64q is not known", name)
	return ""
}
