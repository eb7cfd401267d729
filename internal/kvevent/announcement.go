package kvevent

import (
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
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
//	group_digest   unsigned, 64 bits; absent if it and group_blocks are 0
//	group_blocks   unsigned; absent with group_digest
//
// and those of the card that are not zero; see ModelCard. No string has control
// characters.
func AppendAnnouncement(dst []byte, a *Announcement) []byte {
	keys := 12 + a.Card.keys()
	if a.hasGroupSums() {
		keys += 2
	}
	dst = msgp.AppendMapHeader(dst, keys)
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
	if a.hasGroupSums() {
		dst = appendUint(dst, "group_digest", a.GroupDigest)
		dst = appendUint(dst, "group_blocks", a.GroupBlocks)
	}
	return a.Card.append(dst)
}

// hasGroupSums reports whether the owner has blocks of other groups than the primary one.
func (a *Announcement) hasGroupSums() bool { return a.GroupDigest != 0 || a.GroupBlocks != 0 }

func appendUint(dst []byte, key string, v uint64) []byte {
	dst = msgp.AppendString(dst, key)
	return msgp.AppendUint64(dst, v)
}

// decodeMap decodes a message that is one map. field reads the value of a key. Errors are a value that
// field does not take, a missing key of required, and bytes after the map; what names the message.
func decodeMap(b []byte, what string, field func(c *msgpack.Reader, key []byte), required ...string) error {
	var seen msgpack.Keys
	c := msgpack.NewReader(b)
	for range c.Map() {
		key := c.Text()
		for i, name := range required {
			if string(key) == name {
				seen.Add(i)
			}
		}
		field(c, key)
		if c.Err != nil {
			return fmt.Errorf("%s: %.64q: %w", what, key, c.Err)
		}
	}
	seen.Require(c, required...)
	c.End()
	if c.Err != nil {
		return fmt.Errorf("%s: %w", what, c.Err)
	}
	return nil
}

// DecodeAnnouncement decodes an announcement. Unknown keys are skipped. Errors are:
// an unknown owner kind or health, a string that is too long or has control
// characters, groups that do not fit the block size, and the lack of publisher_id, owner_kind, owner_id or health.
func DecodeAnnouncement(b []byte) (Announcement, error) {
	var a Announcement
	err := decodeMap(b, "announcement", func(c *msgpack.Reader, key []byte) {
		switch string(key) {
		case "publisher_id":
			a.PublisherID = c.Uint64()
		case "owner_kind":
			a.Owner.Kind = readOwnerKind(c)
		case "owner_id":
			a.Owner.ID = c.Uint64()
		case "health":
			a.Health = readHealth(c)
		default:
			a.field(c, key)
		}
	}, "publisher_id", "owner_kind", "owner_id", "health")
	if err != nil {
		return Announcement{}, err
	}
	if err := a.Card.Groups.List().Validate(a.BlockSize); err != nil {
		return Announcement{}, fmt.Errorf("announcement: block size %d: %w", a.BlockSize, err)
	}
	return a, nil
}

// field reads the value of an optional key into a. Keys that are not the announcement's own
// belong to the model card, which skips unknown ones.
func (a *Announcement) field(c *msgpack.Reader, key []byte) {
	switch string(key) {
	case "dp_rank":
		a.Owner.Rank = kv.DPRank(c.Uint(math.MaxUint32))
	case "pool":
		a.Pool = c.Uint64()
	case "namespace":
		id := c.Bin()
		if c.Err == nil && len(id) != len(a.Namespace) {
			c.Fail("%d bytes, want %d", len(id), len(a.Namespace))
		}
		copy(a.Namespace[:], id)
	case "model":
		a.Model = c.BoundedText(MaxModel)
	case "block_size":
		a.BlockSize = c.Uint32()
	case "last_event_id":
		a.LastEventID = c.Uint64()
	case "digest":
		a.Digest = c.Uint64()
	case "blocks":
		a.Blocks = c.Uint64()
	case "group_digest":
		a.GroupDigest = c.Uint64()
	case "group_blocks":
		a.GroupBlocks = c.Uint64()
	default:
		a.Card.field(c, key)
	}
}

// readOwnerKind reads "worker" or "pool". Any other text fails c.
func readOwnerKind(c *msgpack.Reader) kv.OwnerKind {
	name := c.Text()
	for _, k := range []kv.OwnerKind{kv.OwnerWorker, kv.OwnerPool} {
		if string(name) == k.String() {
			return k
		}
	}
	c.Fail("owner kind %.64q, want worker or pool", name)
	return 0
}

// readHealth reads the health of a publisher. An unknown text fails c.
func readHealth(c *msgpack.Reader) Health {
	name := c.Text()
	for _, h := range []Health{HealthExact, HealthDegraded, HealthGone} {
		if string(name) == string(h) {
			return h
		}
	}
	c.Fail("health %.64q, want exact, degraded or gone", name)
	return ""
}

// AgentStatus says how far the streams of one agent are. An agent sends one each second, and several if
// it has more than MaxAgentStreams streams. A stream that is missing from one may be in another.
//
// An AgentStatus travels on the subject of announcements, so that it keeps its place between events. To
// DecodeAnnouncement it is the goodbye of a publisher that nobody has heard of. Readers of earlier versions
// know no AgentStatus, and so it changes nothing for them.
type AgentStatus struct {
	// Agent is the id of the agent, 1 to 2^53-1, random, new at every start. No publisher has it.
	Agent   uint64
	Streams []StreamStatus
}

// StreamStatus is the status of the stream of one publisher. An Announcement of the publisher has the rest.
type StreamStatus struct {
	PublisherID uint64
	Kind        kv.OwnerKind
	Status
}

// MaxAgentStreams bounds the streams of an AgentStatus. With all of them it has less than 8 KiB.
const MaxAgentStreams = 128

// Health in an AgentStatus, by number. The numbers are on the wire and never change.
var healthNumbers = [...]Health{HealthExact, HealthDegraded, HealthGone}

// streamElements is the number of elements of a stream without group sums, groupElements with them.
const streamElements, groupElements = 6, 8

// AppendAgentStatus appends s as a map with these keys, in this order:
//
//	publisher_id   unsigned: the agent
//	owner_kind     "pool"
//	owner_id       0
//	health         "gone"
//	streams        array of arrays of unsigned
//
// The elements of a stream are: publisher id, owner kind (0 worker, 1 pool), last event id, digest,
// blocks, health (0 exact, 1 degraded, 2 gone), and group digest and group blocks unless both are 0.
func AppendAgentStatus(dst []byte, s *AgentStatus) []byte {
	dst = msgp.AppendMapHeader(dst, 5)
	dst = appendUint(dst, "publisher_id", s.Agent)
	dst = msgp.AppendString(dst, "owner_kind")
	dst = msgp.AppendString(dst, kv.OwnerPool.String())
	dst = appendUint(dst, "owner_id", 0)
	dst = msgp.AppendString(dst, "health")
	dst = msgp.AppendString(dst, string(HealthGone))
	dst = msgp.AppendString(dst, "streams")
	dst = msgp.AppendArrayHeader(dst, uint32(len(s.Streams)))
	for i := range s.Streams {
		dst = appendStream(dst, &s.Streams[i])
	}
	return dst
}

func appendStream(dst []byte, s *StreamStatus) []byte {
	elements := uint32(streamElements)
	grouped := s.GroupDigest != 0 || s.GroupBlocks != 0
	if grouped {
		elements = groupElements
	}
	dst = msgp.AppendArrayHeader(dst, elements)
	for _, v := range []uint64{s.PublisherID, uint64(s.Kind), s.LastEventID, s.Digest, s.Blocks, healthNumber(s.Health)} {
		dst = msgp.AppendUint64(dst, v)
	}
	if grouped {
		dst = msgp.AppendUint64(dst, s.GroupDigest)
		dst = msgp.AppendUint64(dst, s.GroupBlocks)
	}
	return dst
}

func healthNumber(h Health) uint64 {
	for i, known := range healthNumbers {
		if h == known {
			return uint64(i)
		}
	}
	return 1 // degraded: the least that can be said of another health
}

// DecodeAgentStatus decodes an AgentStatus into s, whose memory it uses again. The result is false for a
// message without streams, such as an announcement. Unknown keys, and further elements of a stream, are
// skipped. Errors are more than MaxAgentStreams streams, a stream with too few elements, an unknown kind
// or health, and a missing publisher_id.
func DecodeAgentStatus(b []byte, s *AgentStatus) (isStatus bool, err error) {
	s.Agent, s.Streams = 0, s.Streams[:0]
	hasAgent := false
	err = decodeMap(b, "agent status", func(c *msgpack.Reader, key []byte) {
		switch string(key) {
		case "publisher_id":
			s.Agent, hasAgent = c.Uint64(), true
		case "streams":
			isStatus = true
			s.readStreams(c)
		default:
			c.Skip()
		}
	})
	if err == nil && isStatus && !hasAgent {
		err = fmt.Errorf("agent status: no publisher_id")
	}
	if err != nil || !isStatus {
		s.Agent, s.Streams = 0, s.Streams[:0]
	}
	return isStatus, err
}

// readStreams appends the streams of an AgentStatus.
func (s *AgentStatus) readStreams(c *msgpack.Reader) {
	n := c.Array()
	if len(s.Streams)+n > MaxAgentStreams {
		c.Fail("%d streams, want at most %d", n, MaxAgentStreams)
	}
	for range n {
		if c.Err != nil {
			return
		}
		s.Streams = append(s.Streams, readStream(c))
	}
}

func readStream(c *msgpack.Reader) (s StreamStatus) {
	n := c.Array()
	if n < streamElements {
		c.Fail("%d elements of a stream, want at least %d", n, streamElements)
		return s
	}
	s.PublisherID = c.Uint64()
	s.Kind = kv.OwnerKind(c.Uint(uint64(kv.OwnerPool)))
	s.LastEventID, s.Digest, s.Blocks = c.Uint64(), c.Uint64(), c.Uint64()
	s.Health = healthNumbers[c.Uint(uint64(len(healthNumbers)-1))]
	n -= streamElements
	if n >= groupElements-streamElements {
		s.GroupDigest, s.GroupBlocks = c.Uint64(), c.Uint64()
		n -= groupElements - streamElements
	}
	for range n {
		c.Skip()
	}
	return s
}

// Apply puts a stream's status into the last announcement of its publisher.
func (s *Status) Apply(a *Announcement) {
	a.LastEventID, a.Digest, a.Blocks = s.LastEventID, s.Digest, s.Blocks
	a.GroupDigest, a.GroupBlocks, a.Health = s.GroupDigest, s.GroupBlocks, s.Health
}
