package kvevent

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

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
