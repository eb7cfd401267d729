package kvevent

import (
	"encoding/binary"
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
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

// MaxReadAheadTokens bounds the tokens of a ReadAhead.
const MaxReadAheadTokens = 1 << 17

// MaxReadAheadBytes bounds the encoding of a ReadAhead.
const MaxReadAheadBytes = 4*MaxReadAheadTokens + kv.MaxNameBytes + 64

// ReadAhead tells a pool that a request is on its way to one of the pool's engines, so that the pool
// reads the blocks of the prompt from disk meanwhile. It is a hint: it has no answer, and a lost or
// wrong one costs nothing but the read.
type ReadAhead struct {
	// Tokens begin the prompt. A prompt with a LoRA or with objects has no ReadAhead.
	Tokens []uint32
	// Salt is the cache salt, as kv.BoundedName.
	Salt string
}

// ReadAheadSubject returns where the pool of publisher p takes hints.
func ReadAheadSubject(cluster string, p uint64) string {
	return fmt.Sprintf("blockyard.%s.read-ahead.%016x", cluster, p)
}

// AppendReadAhead appends r as a map of tokens, 4 little-endian bytes each in one binary, and salt.
func AppendReadAhead(dst []byte, r *ReadAhead) []byte {
	dst = msgp.AppendMapHeader(dst, 2)
	dst = msgp.AppendString(dst, "tokens")
	packed := make([]byte, 0, 4*len(r.Tokens))
	for _, t := range r.Tokens {
		packed = binary.LittleEndian.AppendUint32(packed, t)
	}
	dst = msgp.AppendBytes(dst, packed)
	dst = msgp.AppendString(dst, "salt")
	return msgp.AppendString(dst, r.Salt)
}

// DecodeReadAhead decodes a hint. Unknown keys are skipped. Errors are no token, more than
// MaxReadAheadTokens, a part of a token, and a salt of more than kv.MaxNameBytes.
func DecodeReadAhead(b []byte) (ReadAhead, error) {
	var r ReadAhead
	c := msgpack.NewReader(b)
	for range c.Map() {
		key := c.Text()
		switch string(key) {
		case "tokens":
			r.Tokens = readPackedTokens(c)
		case "salt":
			r.Salt = readSalt(c)
		default:
			c.Skip()
		}
		if c.Err != nil {
			return ReadAhead{}, fmt.Errorf("read-ahead: %.64q: %w", key, c.Err)
		}
	}
	c.End()
	if c.Err == nil && len(r.Tokens) == 0 {
		c.Fail("no tokens")
	}
	if c.Err != nil {
		return ReadAhead{}, fmt.Errorf("read-ahead: %w", c.Err)
	}
	return r, nil
}

// readSalt reads a salt, which may have any characters.
func readSalt(c *msgpack.Reader) string {
	salt := c.Text()
	if len(salt) > kv.MaxNameBytes {
		c.Fail("%d bytes, want at most %d", len(salt), kv.MaxNameBytes)
		return ""
	}
	return string(salt)
}

// readPackedTokens reads tokens of 4 little-endian bytes each.
func readPackedTokens(c *msgpack.Reader) []uint32 {
	packed := c.Bin()
	if len(packed)%4 != 0 || len(packed) > 4*MaxReadAheadTokens {
		c.Fail("%d bytes, want a multiple of 4 of at most %d", len(packed), 4*MaxReadAheadTokens)
		return nil
	}
	tokens := make([]uint32, len(packed)/4)
	for i := range tokens {
		tokens[i] = binary.LittleEndian.Uint32(packed[4*i:])
	}
	return tokens
}
