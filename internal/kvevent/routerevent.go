package kvevent

import (
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// poolOwner is the value of owner_kind in the events of pools.
const poolOwner = "pool"

// errForeign marks an event that is well formed but speaks of a kind of owner
// or residency that this version does not model.
var errForeign = errors.New("owner kind or residency domain is not known")

// appendRouterEvent appends
//
//	{worker_id, storage_tier, event: {event_id, data, dp_rank}, owner_kind}
//
// where data is {"stored": {parent_hash, start_position, blocks}},
// {"removed": {block_hashes}} or "cleared". For a pool, worker_id is the pool's
// id; owner_kind is there for pools alone, so that a worker's event is byte for
// byte what Dynamo writes.
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

func appendData(dst []byte, e *RouterEvent) []byte {
	switch e.Kind {
	case Stored:
		dst = msgp.AppendMapHeader(dst, 1)
		dst = msgp.AppendString(dst, "stored")
		return appendStoredData(dst, e)
	case Removed:
		dst = msgp.AppendMapHeader(dst, 1)
		dst = msgp.AppendString(dst, "removed")
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

func appendStoredData(dst []byte, e *RouterEvent) []byte {
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

// decodeRouterEvent reads one router event. The error is errForeign for an
// event that must be left out although nothing is wrong with it.
func decodeRouterEvent(c *cursor, mem *routerMemory) (RouterEvent, error) {
	var e RouterEvent
	var seen fieldSet
	foreign := false
	for range c.mapping() {
		key := c.text()
		switch string(key) {
		case "worker_id":
			e.Owner.ID = c.uint64()
			seen.add(0)
		case "storage_tier":
			e.Tier = c.tier()
		case "residency_domain":
			if c.null() || string(c.text()) != "worker" {
				foreign = true
			}
		case "event":
			decodeChange(c, &e, mem)
			seen.add(1)
		case "owner_kind":
			switch string(c.text()) {
			case "worker":
				e.Owner.Kind = kv.OwnerWorker
			case poolOwner:
				e.Owner.Kind = kv.OwnerPool
			default:
				foreign = true
			}
		default:
			c.skip()
		}
		if c.err != nil {
			return e, fmt.Errorf("%.64q: %w", key, c.err)
		}
	}
	if e.Owner.Kind == kv.OwnerPool {
		e.Owner.Rank = 0
	}
	seen.require(c, "worker_id", "event")
	if c.err == nil && foreign {
		return e, errForeign
	}
	return e, c.err
}

func (c *cursor) tier() kv.Tier {
	name := c.text()
	for _, t := range kv.Tiers {
		if string(name) == t.String() {
			return t
		}
	}
	c.fail("tier %.64q is not known", name)
	return 0
}

// decodeChange reads {event_id, data, dp_rank} into e.
func decodeChange(c *cursor, e *RouterEvent, mem *routerMemory) {
	var seen fieldSet
	for range c.mapping() {
		switch key := c.text(); string(key) {
		case "event_id":
			e.ID = c.uint64()
			seen.add(0)
		case "data":
			decodeData(c, e, mem)
			seen.add(1)
		case "dp_rank":
			e.Owner.Rank = kv.DPRank(c.uint(math.MaxUint32))
		default:
			c.skip()
		}
		if c.err != nil {
			return
		}
	}
	seen.require(c, "event_id", "data")
}

// decodeData reads a change: a map with its kind as the only key, or the bare
// kind when there is nothing more to say.
func decodeData(c *cursor, e *RouterEvent, mem *routerMemory) {
	*e = RouterEvent{Owner: e.Owner, Tier: e.Tier, ID: e.ID}
	if c.peek() == wireText {
		if name := c.text(); string(name) != "cleared" {
			c.fail("change %.64q is not known", name)
		}
		e.Kind = Cleared
		return
	}
	if n := c.mapping(); c.err == nil && n != 1 {
		c.fail("a change of %d kinds, want 1", n)
	}
	switch name := c.text(); string(name) {
	case "stored":
		e.Kind = Stored
		decodeStored(c, e, mem)
	case "removed":
		e.Kind = Removed
		decodeRemoved(c, e, mem)
	default:
		c.fail("change %.64q is not known", name)
	}
}

func decodeStored(c *cursor, e *RouterEvent, mem *routerMemory) {
	start := len(mem.blocks)
	for range c.mapping() {
		switch key := c.text(); string(key) {
		case "parent_hash":
			parent, has := c.optionalUint64()
			e.Parent, e.HasParent = kv.SequenceHash(parent), has
		case "start_position":
			e.StartPosition, e.HasStart = 0, !c.null()
			if e.HasStart {
				e.StartPosition = c.uint32()
			}
		case "blocks":
			for range c.array() {
				mem.blocks = append(mem.blocks, decodeBlock(c))
				if c.err != nil {
					return
				}
			}
		default:
			c.skip()
		}
	}
	e.Blocks = mem.blocks[start:len(mem.blocks):len(mem.blocks)]
}

func decodeBlock(c *cursor) StoredBlock {
	var b StoredBlock
	var seen fieldSet
	for range c.mapping() {
		switch key := c.text(); string(key) {
		case "block_hash":
			b.Hash = kv.SequenceHash(c.uint64())
			seen.add(0)
		case "tokens_hash":
			b.Local = kv.LocalHash(c.uint64())
			seen.add(1)
		default:
			c.skip()
		}
	}
	seen.require(c, "block_hash", "tokens_hash")
	return b
}

func decodeRemoved(c *cursor, e *RouterEvent, mem *routerMemory) {
	start := len(mem.removed)
	for range c.mapping() {
		if string(c.text()) != "block_hashes" {
			c.skip()
			continue
		}
		for range c.array() {
			mem.removed = append(mem.removed, kv.SequenceHash(c.uint64()))
			if c.err != nil {
				return
			}
		}
	}
	e.Removed = mem.removed[start:len(mem.removed):len(mem.removed)]
}

// fieldSet notes which required fields of a map have been seen.
type fieldSet uint32

func (s *fieldSet) add(i int) { *s |= 1 << i }

// require fails the cursor unless the fields with numbers 0, 1, … have been
// seen.
func (s fieldSet) require(c *cursor, names ...string) {
	for i, name := range names {
		if s&(1<<i) == 0 {
			c.fail("no %s", name)
		}
	}
}
