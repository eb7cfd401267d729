package kvevent

import (
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// AppendAnnouncement appends a as a map with these keys, in this order:
//
//	publisher_id   unsigned
//	owner_kind     "worker" or "pool"
//	owner_id       unsigned: worker id or pool id
//	dp_rank        unsigned, 0 for a pool
//	pool           unsigned: id of the worker's pool, 0 without one
//	namespace      16 bytes
//	model          string of at most MaxModel bytes
//	block_size     unsigned, in tokens
//	last_event_id  unsigned
//	digest         unsigned, 64 bits
//	blocks         unsigned
//	health         "exact", "degraded" or "gone"
//
// and those of the card that are not zero; see ModelCard. No string has control
// characters.
func AppendAnnouncement(dst []byte, a *Announcement) []byte {
	dst = msgp.AppendMapHeader(dst, 12+a.Card.keys())
	dst = appendUint(dst, "publisher_id", a.PublisherID)
	dst = msgp.AppendString(dst, "owner_kind")
	dst = msgp.AppendString(dst, a.Owner.Kind.String())
	dst = appendUint(dst, "owner_id", a.Owner.ID)
	dst = appendUint(dst, "dp_rank", uint64(a.Owner.Rank))
	dst = appendUint(dst, "pool", a.Pool)
	dst = msgp.AppendString(dst, "namespace")
	dst = msgp.AppendBytes(dst, a.Namespace[:])
	dst = msgp.AppendString(dst, "model")
	dst = msgp.AppendString(dst, a.Model)
	dst = appendUint(dst, "block_size", uint64(a.BlockSize))
	dst = appendUint(dst, "last_event_id", a.LastEventID)
	dst = appendUint(dst, "digest", a.Digest)
	dst = appendUint(dst, "blocks", a.Blocks)
	dst = msgp.AppendString(dst, "health")
	dst = msgp.AppendString(dst, string(a.Health))
	return a.Card.append(dst)
}

func appendUint(dst []byte, key string, v uint64) []byte {
	dst = msgp.AppendString(dst, key)
	return msgp.AppendUint64(dst, v)
}

// DecodeAnnouncement decodes what AppendAnnouncement writes. Keys that are not
// known are skipped; an owner kind or a health that is not known is an error, and
// so are a string that is too long or has control characters, and the lack of
// publisher_id, owner_kind, owner_id or health.
func DecodeAnnouncement(b []byte) (Announcement, error) {
	var a Announcement
	var seen fieldSet
	c := cursor{buf: b}
	for range c.mapping() {
		key := c.text()
		switch string(key) {
		case "publisher_id":
			a.PublisherID = c.uint64()
			seen.add(0)
		case "owner_kind":
			a.Owner.Kind = c.ownerKind()
			seen.add(1)
		case "owner_id":
			a.Owner.ID = c.uint64()
			seen.add(2)
		case "health":
			a.Health = c.health()
			seen.add(3)
		default:
			a.field(&c, key)
		}
		if c.err != nil {
			return Announcement{}, fmt.Errorf("announcement: %.64q: %w", key, c.err)
		}
	}
	seen.require(&c, "publisher_id", "owner_kind", "owner_id", "health")
	c.end()
	if c.err != nil {
		return Announcement{}, fmt.Errorf("announcement: %w", c.err)
	}
	return a, nil
}

// field reads the value of a key that need not be there.
func (a *Announcement) field(c *cursor, key []byte) {
	switch string(key) {
	case "dp_rank":
		a.Owner.Rank = kv.DPRank(c.uint(math.MaxUint32))
	case "pool":
		a.Pool = c.uint64()
	case "namespace":
		id := c.bin()
		if c.err == nil && len(id) != len(a.Namespace) {
			c.fail("%d bytes, want %d", len(id), len(a.Namespace))
		}
		copy(a.Namespace[:], id)
	case "model":
		a.Model = c.boundedText(MaxModel)
	case "block_size":
		a.BlockSize = c.uint32()
	case "last_event_id":
		a.LastEventID = c.uint64()
	case "digest":
		a.Digest = c.uint64()
	case "blocks":
		a.Blocks = c.uint64()
	default:
		a.Card.field(c, key)
	}
}

func (c *cursor) ownerKind() kv.OwnerKind {
	name := c.text()
	for _, k := range []kv.OwnerKind{kv.OwnerWorker, kv.OwnerPool} {
		if string(name) == k.String() {
			return k
		}
	}
	c.fail("owner kind %.64q, want worker or pool", name)
	return 0
}

func (c *cursor) health() Health {
	name := c.text()
	for _, h := range []Health{HealthExact, HealthDegraded, HealthGone} {
		if string(name) == string(h) {
			return h
		}
	}
	c.fail("health %.64q, want exact, degraded or gone", name)
	return ""
}
