package kvevent

import (
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// poolOwner is the value of owner_kind in the events of pools.
const poolOwner = "pool"

// errForeign marks a well-formed event of an owner kind or residency domain that
// this version does not model.
var errForeign = errors.New("owner kind or residency domain is not known")

// appendRouterEvent appends
//
//	{worker_id, storage_tier, event: {event_id, data, dp_rank}, owner_kind}
//
// where data is {"stored": {parent_hash, start_position, blocks}}, {"removed":
// {block_hashes}} or "cleared". For a pool, worker_id is the pool's id. Only pools
// have owner_kind, so that a worker's event has the bytes that Dynamo writes.
func appendRouterEvent(dst []byte, e *RouterEvent) []byte {
	pool := e.Owner.Kind == kv.OwnerPool
	keys, rank := uint32(3), e.Owner.Rank
	if pool {
		keys, rank = 4, 0
	}
	dst = msgp.AppendMapHeader(dst, keys)
	dst = msgp.AppendString(dst, "worker_id")
	dst = msgp.AppendUint64(dst, e.Owner.ID)
	dst = msgp.AppendString(dst, "storage_tier")
	dst = msgp.AppendString(dst, e.Tier.String())
	dst = msgp.AppendString(dst, "event")
	dst = msgp.AppendMapHeader(dst, 3)
	dst = msgp.AppendString(dst, "event_id")
	dst = msgp.AppendUint64(dst, e.ID)
	dst = msgp.AppendString(dst, "data")
	dst = appendData(dst, e)
	dst = msgp.AppendString(dst, "dp_rank")
	dst = msgp.AppendUint32(dst, uint32(rank))
	if pool {
		dst = msgp.AppendString(dst, "owner_kind")
		dst = msgp.AppendString(dst, poolOwner)
	}
	return dst
}

// appendData appends what an event says: {"stored": fields}, {"removed": fields} or "cleared". The
// caller has set the event's Kind.
func appendData(dst []byte, e *RouterEvent) []byte {
	switch e.Kind {
	case Stored:
		dst = msgp.AppendMapHeader(dst, 1)
		dst = msgp.AppendString(dst, "stored")
		return appendStoredData(dst, e)
	case Removed:
		dst = msgp.AppendMapHeader(dst, 1)
		dst = msgp.AppendString(dst, "removed")
		if e.Group != 0 {
			dst = msgp.AppendMapHeader(dst, 3)
			dst = appendEmptyArray(dst, "block_hashes")
			dst = appendGroupHead(dst, e.Group, len(e.Removed))
			for _, h := range e.Removed {
				dst = msgp.AppendUint64(dst, uint64(h))
			}
			return dst
		}
		dst = msgp.AppendMapHeader(dst, 1)
		dst = msgp.AppendString(dst, "block_hashes")
		dst = msgp.AppendArrayHeader(dst, uint32(len(e.Removed)))
		for _, h := range e.Removed {
			dst = msgp.AppendUint64(dst, uint64(h))
		}
		return dst
	case Cleared:
		return msgp.AppendString(dst, "cleared")
	}
	panic("BUG: router event of kind " + e.Kind.String())
}

// appendStoredData appends the fields of a stored event. mm_extra_info is always nil, because the
// tokens hash covers multimodal objects.
func appendStoredData(dst []byte, e *RouterEvent) []byte {
	if e.Group != 0 {
		return appendStoredInGroup(dst, e)
	}
	dst = msgp.AppendMapHeader(dst, 3)
	dst = appendUint64OrNil(dst, "parent_hash", uint64(e.Parent), e.HasParent)
	dst = appendUint64OrNil(dst, "start_position", uint64(e.StartPosition), e.HasStart)
	dst = msgp.AppendString(dst, "blocks")
	dst = msgp.AppendArrayHeader(dst, uint32(len(e.Blocks)))
	for _, b := range e.Blocks {
		dst = msgp.AppendMapHeader(dst, 3)
		dst = msgp.AppendString(dst, "block_hash")
		dst = msgp.AppendUint64(dst, uint64(b.Hash))
		dst = msgp.AppendString(dst, "tokens_hash")
		dst = msgp.AppendUint64(dst, uint64(b.Local))
		dst = msgp.AppendString(dst, "mm_extra_info")
		dst = msgp.AppendNil(dst)
	}
	return dst
}

// appendStoredInGroup appends the fields of a stored event of another group than the primary one. A
// reader of an earlier version skips the last two keys, and reads an event without blocks.
func appendStoredInGroup(dst []byte, e *RouterEvent) []byte {
	dst = msgp.AppendMapHeader(dst, 5)
	dst = appendUint64OrNil(dst, "parent_hash", 0, false)
	dst = appendUint64OrNil(dst, "start_position", 0, false)
	dst = appendEmptyArray(dst, "blocks")
	dst = appendGroupHead(dst, e.Group, len(e.Blocks))
	for _, b := range e.Blocks {
		dst = msgp.AppendUint64(dst, uint64(b.Hash))
	}
	return dst
}

// appendGroupHead appends the keys group and group_hashes up to the header of an array of n hashes,
// which the caller appends.
func appendGroupHead(dst []byte, group uint32, n int) []byte {
	dst = appendUint(dst, "group", uint64(group))
	dst = msgp.AppendString(dst, "group_hashes")
	return msgp.AppendArrayHeader(dst, uint32(n))
}

func appendEmptyArray(dst []byte, key string) []byte {
	return msgp.AppendArrayHeader(msgp.AppendString(dst, key), 0)
}

func appendUint64OrNil(dst []byte, key string, v uint64, has bool) []byte {
	dst = msgp.AppendString(dst, key)
	if !has {
		return msgp.AppendNil(dst)
	}
	return msgp.AppendUint64(dst, v)
}

func appendRouterEvents(dst []byte, events []RouterEvent) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(events)))
	for i := range events {
		dst = appendRouterEvent(dst, &events[i])
	}
	return dst
}

// routerMemory is the memory behind the slices of decoded router events.
type routerMemory struct {
	blocks  []StoredBlock
	removed []kv.SequenceHash
}

func (m *routerMemory) reset() { m.blocks, m.removed = m.blocks[:0], m.removed[:0] }

// decodeRouterEvent reads one router event, whose slices lie in mem. The error is errForeign for a
// well-formed event of an owner or a residency domain that this version does not model; the caller
// skips it. After any other error the reader is at an unknown place.
func decodeRouterEvent(c *msgpack.Reader, mem *routerMemory) (RouterEvent, error) {
	var e RouterEvent
	var seen msgpack.Keys
	foreign := false
	for range c.Map() {
		key := c.Text()
		switch string(key) {
		case "worker_id":
			e.Owner.ID = c.Uint64()
			seen.Add(0)
		case "storage_tier":
			e.Tier = readTier(c)
		case "residency_domain":
			if c.Null() || string(c.Text()) != "worker" {
				foreign = true
			}
		case "event":
			decodeChange(c, &e, mem)
			seen.Add(1)
		case "owner_kind":
			switch string(c.Text()) {
			case "worker":
				e.Owner.Kind = kv.OwnerWorker
			case poolOwner:
				e.Owner.Kind = kv.OwnerPool
			default:
				foreign = true
			}
		default:
			c.Skip()
		}
		if c.Err != nil {
			return e, fmt.Errorf("%.64q: %w", key, c.Err)
		}
	}
	if e.Owner.Kind == kv.OwnerPool {
		e.Owner.Rank = 0
	}
	seen.Require(c, "worker_id", "event")
	if c.Err == nil && foreign {
		return e, errForeign
	}
	return e, c.Err
}

func readTier(c *msgpack.Reader) kv.Tier {
	t, err := kv.ParseTier(c.Text())
	if err != nil {
		c.Fail("%v", err)
	}
	return t
}

// decodeChange reads the inner map of a router event, {event_id, data, dp_rank}, into e. Slices
// of e lie in mem. Errors are in c.
func decodeChange(c *msgpack.Reader, e *RouterEvent, mem *routerMemory) {
	var seen msgpack.Keys
	for range c.Map() {
		switch key := c.Text(); string(key) {
		case "event_id":
			e.ID = c.Uint64()
			seen.Add(0)
		case "data":
			decodeData(c, e, mem)
			seen.Add(1)
		case "dp_rank":
			e.Owner.Rank = kv.DPRank(c.Uint(math.MaxUint32))
		default:
			c.Skip()
		}
		if c.Err != nil {
			return
		}
	}
	seen.Require(c, "event_id", "data")
}

// decodeData reads what an event says into e: {"stored": fields}, {"removed": fields} or the text
// "cleared".
func decodeData(c *msgpack.Reader, e *RouterEvent, mem *routerMemory) {
	*e = RouterEvent{Owner: e.Owner, Tier: e.Tier, ID: e.ID} // a repeated key replaces the first
	if c.Peek() == msgpack.Text {
		if name := c.Text(); string(name) != "cleared" {
			c.Fail("change %.64q is not known", name)
		}
		e.Kind = Cleared
		return
	}
	if n := c.Map(); c.Err == nil && n != 1 {
		c.Fail("a change of %d kinds, want 1", n)
	}
	switch name := c.Text(); string(name) {
	case "stored":
		e.Kind = Stored
		decodeStored(c, e, mem)
	case "removed":
		e.Kind = Removed
		decodeRemoved(c, e, mem)
	default:
		c.Fail("change %.64q is not known", name)
	}
}

// decodeStored reads the fields of a stored event into e. The blocks lie in mem.
func decodeStored(c *msgpack.Reader, e *RouterEvent, mem *routerMemory) {
	start := len(mem.blocks)
	groupHashes, plain := false, 0
	for range c.Map() {
		switch key := c.Text(); string(key) {
		case "parent_hash":
			parent, has := c.OptionalUint64()
			e.Parent, e.HasParent = kv.SequenceHash(parent), has
		case "start_position":
			e.StartPosition, e.HasStart = 0, !c.Null()
			if e.HasStart {
				e.StartPosition = c.Uint32()
			}
		case "blocks":
			for range c.Array() {
				mem.blocks = append(mem.blocks, decodeBlock(c))
				plain++
				if c.Err != nil {
					return
				}
			}
		case "group":
			e.Group = c.Uint32()
		case "group_hashes":
			groupHashes = true
			for range c.Array() {
				mem.blocks = append(mem.blocks, StoredBlock{Hash: kv.SequenceHash(c.Uint64())})
				if c.Err != nil {
					return
				}
			}
		default:
			c.Skip()
		}
	}
	e.Blocks = mem.blocks[start:len(mem.blocks):len(mem.blocks)]
	checkGroup(c, e, groupHashes, plain)
}

// readHashes appends an array of hashes to mem.removed.
func readHashes(c *msgpack.Reader, mem *routerMemory) {
	for range c.Array() {
		mem.removed = append(mem.removed, kv.SequenceHash(c.Uint64()))
		if c.Err != nil {
			return
		}
	}
}

// checkGroup fails c for an event that mixes the forms of the primary group and of another one. plain
// is the number of blocks in the primary group's form.
func checkGroup(c *msgpack.Reader, e *RouterEvent, groupHashes bool, plain int) {
	if c.Err != nil {
		return
	}
	switch {
	case groupHashes != (e.Group != 0) || e.Group != 0 && plain > 0:
		c.Fail("group %d, group_hashes %t, %d blocks of the primary group", e.Group, groupHashes, plain)
	case e.Group > maxGroup:
		c.Fail("group %d, want at most %d", e.Group, maxGroup)
	case e.Group != 0 && (e.HasParent || e.HasStart):
		c.Fail("group %d with a parent or a position", e.Group)
	}
}

// decodeBlock reads one block of a stored event: {block_hash, tokens_hash}. Both are required.
func decodeBlock(c *msgpack.Reader) StoredBlock {
	var b StoredBlock
	var seen msgpack.Keys
	for range c.Map() {
		switch key := c.Text(); string(key) {
		case "block_hash":
			b.Hash = kv.SequenceHash(c.Uint64())
			seen.Add(0)
		case "tokens_hash":
			b.Local = kv.LocalHash(c.Uint64())
			seen.Add(1)
		default:
			c.Skip()
		}
	}
	seen.Require(c, "block_hash", "tokens_hash")
	return b
}

// decodeRemoved reads the fields of a removed event into e. The hashes lie in mem.
func decodeRemoved(c *msgpack.Reader, e *RouterEvent, mem *routerMemory) {
	start := len(mem.removed)
	groupHashes, plain := false, 0
	for range c.Map() {
		switch string(c.Text()) {
		case "block_hashes":
			before := len(mem.removed)
			readHashes(c, mem)
			plain += len(mem.removed) - before
		case "group":
			e.Group = c.Uint32()
		case "group_hashes":
			groupHashes = true
			readHashes(c, mem)
		default:
			c.Skip()
		}
	}
	e.Removed = mem.removed[start:len(mem.removed):len(mem.removed)]
	checkGroup(c, e, groupHashes, plain)
}
