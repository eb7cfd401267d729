package remote

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"
	"github.com/zeebo/xxh3"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Subject returns the subject of questions to the routers of a cluster that serve their indexes.
func Subject(cluster string) string { return "blockyard." + cluster + ".indexer" }

const (
	// maxBlocks bounds the blocks of a question. A longer prompt is asked for by its first blocks.
	maxBlocks = 1 << 16
	// maxWorkers bounds the workers of an answer.
	maxWorkers = 1 << 14
	// maxBytes bounds both.
	maxBytes = 1 << 20
	maxName  = 4096
)

// Query asks what workers have of a prompt.
type Query struct {
	Model     string
	BlockSize uint32
	Reading   index.Reading
	// MaxTokens and PrimaryGroup are as in index.Matches.
	MaxTokens    int
	PrimaryGroup bool
	Locals       []kv.LocalHash
}

// Held is what one worker has of a prompt.
type Held struct {
	Worker kv.Worker
	Hits   index.Hits
}

// Answer answers a Query: the workers with hits, in order, and how far the hits can be trusted. Known
// identifies the workers of the index, with hits or without: see fingerprint.
type Answer struct {
	Quality feed.Quality
	Known   uint64
	Workers []Held
}

// fingerprint returns a hash of the workers of a list: two routers with equal fingerprints know the same
// workers.
func fingerprint(m *index.Members) uint64 {
	b := make([]byte, 0, 12*len(m.List))
	for i := range m.List {
		b = binary.LittleEndian.AppendUint64(b, uint64(m.List[i].Worker.ID))
		b = binary.LittleEndian.AppendUint32(b, uint32(m.List[i].Worker.Rank))
	}
	return xxh3.Hash(b)
}

func appendQuery(dst []byte, q *Query) []byte {
	dst = msgp.AppendMapHeader(dst, 6)
	dst = msgp.AppendString(msgp.AppendString(dst, "model"), q.Model)
	dst = msgp.AppendUint64(msgp.AppendString(dst, "block_size"), uint64(q.BlockSize))
	dst = msgp.AppendUint64(msgp.AppendString(dst, "reading"), uint64(q.Reading))
	dst = msgp.AppendUint64(msgp.AppendString(dst, "max_tokens"), uint64(q.MaxTokens))
	dst = msgp.AppendBool(msgp.AppendString(dst, "primary_group"), q.PrimaryGroup)
	dst = msgp.AppendBytesHeader(msgp.AppendString(dst, "hashes"), uint32(8*len(q.Locals)))
	for _, h := range q.Locals {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(h))
	}
	return dst
}

// decodeQuery decodes a question. Unknown keys are skipped. The error names the bad key.
func decodeQuery(b []byte) (q Query, err error) {
	if len(b) > maxBytes {
		return Query{}, fmt.Errorf("index query: %d bytes are more than %d", len(b), maxBytes)
	}
	var seen msgpack.Keys
	c := msgpack.NewReader(b)
	for range c.Map() {
		key := c.Text()
		switch string(key) {
		case "model":
			q.Model = c.BoundedText(maxName)
			seen.Add(0)
		case "block_size":
			q.BlockSize = uint32(c.Uint(math.MaxUint32))
			seen.Add(1)
		case "reading":
			q.Reading = index.Reading(c.Uint(uint64(index.Union)))
		case "max_tokens":
			q.MaxTokens = int(c.Uint(math.MaxInt32))
		case "primary_group":
			q.PrimaryGroup = c.Boolean()
		case "hashes":
			q.Locals = readHashes(c)
			seen.Add(2)
		default:
			c.Skip()
		}
		if c.Err != nil {
			return Query{}, fmt.Errorf("index query: %.64q: %w", key, c.Err)
		}
	}
	seen.Require(c, "model", "block_size", "hashes")
	c.End()
	if c.Err != nil {
		return Query{}, fmt.Errorf("index query: %w", c.Err)
	}
	return q, nil
}

func readHashes(c *msgpack.Reader) []kv.LocalHash {
	b := c.Bin()
	if c.Err == nil && (len(b)%8 != 0 || len(b) > 8*maxBlocks) {
		c.Fail("%d bytes of hashes: want a multiple of 8, at most %d", len(b), 8*maxBlocks)
	}
	if c.Err != nil {
		return nil
	}
	locals := make([]kv.LocalHash, len(b)/8)
	for i := range locals {
		locals[i] = kv.LocalHash(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return locals
}

// appendAnswer appends an answer. Each worker is an array of id, rank, and the blocks in each tier.
func appendAnswer(dst []byte, a *Answer) []byte {
	dst = msgp.AppendMapHeader(dst, 3)
	dst = msgp.AppendString(msgp.AppendString(dst, "quality"), string(a.Quality))
	dst = msgp.AppendUint64(msgp.AppendString(dst, "known"), a.Known)
	dst = msgp.AppendArrayHeader(msgp.AppendString(dst, "workers"), uint32(len(a.Workers)))
	for i := range a.Workers {
		w := &a.Workers[i]
		dst = msgp.AppendArrayHeader(dst, 2+uint32(len(w.Hits)))
		dst = msgp.AppendUint64(msgp.AppendUint64(dst, uint64(w.Worker.ID)), uint64(w.Worker.Rank))
		for _, n := range w.Hits {
			dst = msgp.AppendUint64(dst, uint64(n))
		}
	}
	return dst
}

// decodeAnswer decodes the answer to a question about a number of blocks. Unknown keys are skipped. The
// error names the bad key.
func decodeAnswer(b []byte, blocks int) (a Answer, err error) {
	if len(b) > maxBytes {
		return Answer{}, fmt.Errorf("index answer: %d bytes are more than %d", len(b), maxBytes)
	}
	var seen msgpack.Keys
	c := msgpack.NewReader(b)
	for range c.Map() {
		key := c.Text()
		switch string(key) {
		case "quality":
			a.Quality = readQuality(c)
			seen.Add(0)
		case "known":
			a.Known = c.Uint64()
		case "workers":
			a.Workers = readWorkers(c, blocks)
			seen.Add(1)
		default:
			c.Skip()
		}
		if c.Err != nil {
			return Answer{}, fmt.Errorf("index answer: %.64q: %w", key, c.Err)
		}
	}
	seen.Require(c, "quality", "workers")
	c.End()
	if c.Err != nil {
		return Answer{}, fmt.Errorf("index answer: %w", c.Err)
	}
	return a, nil
}

func readQuality(c *msgpack.Reader) feed.Quality {
	switch q := feed.Quality(c.BoundedText(16)); q {
	case feed.Exact, feed.Degraded, feed.Fallback:
		return q
	default:
		c.Fail("quality %q: want %q, %q or %q", q, feed.Exact, feed.Degraded, feed.Fallback)
		return feed.Fallback
	}
}

// readWorkers reads workers in order, each with at least one of the blocks and at most all.
func readWorkers(c *msgpack.Reader, blocks int) []Held {
	n := c.Array()
	if c.Err == nil && n > maxWorkers {
		c.Fail("%d workers: want at most %d", n, maxWorkers)
	}
	if c.Err != nil {
		return nil
	}
	all := make([]Held, 0, n)
	for range n {
		var w Held
		if elements := c.Array(); c.Err == nil && elements != 2+len(w.Hits) {
			c.Fail("worker of %d elements: want %d", elements, 2+len(w.Hits))
		}
		w.Worker = kv.Worker{ID: kv.WorkerID(c.Uint64()), Rank: kv.DPRank(c.Uint(math.MaxUint32))}
		left := uint64(blocks)
		for t := range w.Hits {
			w.Hits[t] = uint32(c.Uint(left))
			left -= uint64(w.Hits[t])
		}
		if last := len(all) - 1; c.Err == nil && last >= 0 && all[last].Worker.Compare(w.Worker) >= 0 {
			c.Fail("worker %v after %v: want ascending order", w.Worker, all[last].Worker)
		}
		if c.Err != nil {
			return nil
		}
		all = append(all, w)
	}
	return all
}
