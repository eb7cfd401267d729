package kvevent

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// ModelCard is what an announcement says about who serves, beyond what the hashes
// are about. Every field may be zero, which says nothing. On the wire each field
// that is not zero is a key of the announcement:
//
//	endpoint                string
//	ranks                   unsigned
//	device_blocks           unsigned
//	max_num_batched_tokens  unsigned
//	host_bytes              unsigned
//	disk_bytes              unsigned
//	taints                  array of at most MaxTaints strings of at most MaxTaint bytes
//	incarnation             unsigned
//	eagle                   boolean
//	silent                  boolean
//	source                  string
type ModelCard struct {
	// Endpoint is where the worker's engine takes requests, as a URL of at most
	// MaxEndpoint bytes.
	Endpoint string
	// Ranks is how many data-parallel ranks the worker's engine has.
	Ranks uint32
	// DeviceBlocks is the capacity of a worker's device in blocks, HostBytes and
	// DiskBytes those of a pool's tiers.
	DeviceBlocks, HostBytes, DiskBytes uint64
	// MaxBatchedTokens is how many tokens a worker computes in a step at most.
	MaxBatchedTokens uint64
	// Taints are the worker's labels.
	Taints Taints
	// Incarnation is random, and new at every start of the worker's engine. A restart of
	// the agent does not change it; see docs/protocol.md, HELLO.
	Incarnation uint64
	// Eagle says that the engine hashes pairs of tokens; see kv.BlockTokens.
	Eagle bool
	// Silent says that the owner publishes no events: what it holds is not known,
	// and that it holds nothing is no knowledge.
	Silent bool
	// Source says who vouches for the owner when that is not its agent: "file",
	// "http" or "dynamo".
	Source string
}

// MaxEndpoint bounds the length of ModelCard.Endpoint and ModelCard.Source in bytes.
const MaxEndpoint = 2048

// MaxModel bounds the length of a model's name in bytes.
const MaxModel = 1024

// keys is the number of pairs that append writes.
func (m *ModelCard) keys() uint32 {
	var n uint32
	for _, set := range []bool{m.Endpoint != "", m.Ranks != 0, m.DeviceBlocks != 0, m.MaxBatchedTokens != 0,
		m.HostBytes != 0, m.DiskBytes != 0, m.Taints != "", m.Incarnation != 0, m.Eagle, m.Silent, m.Source != ""} {
		if set {
			n++
		}
	}
	return n
}

// append appends the fields that are not zero as pairs of a map.
func (m *ModelCard) append(dst []byte) []byte {
	if m.Endpoint != "" {
		dst = appendTextPair(dst, "endpoint", m.Endpoint)
	}
	for _, f := range []struct {
		key string
		v   uint64
	}{
		{"ranks", uint64(m.Ranks)}, {"device_blocks", m.DeviceBlocks},
		{"max_num_batched_tokens", m.MaxBatchedTokens},
		{"host_bytes", m.HostBytes}, {"disk_bytes", m.DiskBytes},
		{"incarnation", m.Incarnation},
	} {
		if f.v != 0 {
			dst = appendUint(dst, f.key, f.v)
		}
	}
	if m.Taints != "" {
		dst = m.Taints.append(dst, "taints")
	}
	for _, f := range []struct {
		key string
		set bool
	}{{"eagle", m.Eagle}, {"silent", m.Silent}} {
		if f.set {
			dst = msgp.AppendBool(msgp.AppendString(dst, f.key), true)
		}
	}
	if m.Source != "" {
		dst = appendTextPair(dst, "source", m.Source)
	}
	return dst
}

func appendTextPair(dst []byte, key, v string) []byte {
	dst = msgp.AppendString(dst, key)
	return msgp.AppendString(dst, v)
}

// field reads the value of a key; one that is not known is skipped.
func (m *ModelCard) field(c *msgpack.Reader, key []byte) {
	switch string(key) {
	case "endpoint":
		m.Endpoint = c.BoundedText(MaxEndpoint)
	case "ranks":
		m.Ranks = c.Uint32()
	case "device_blocks":
		m.DeviceBlocks = c.Uint64()
	case "max_num_batched_tokens":
		m.MaxBatchedTokens = c.Uint64()
	case "taints":
		m.Taints = readTaints(c)
	case "host_bytes":
		m.HostBytes = c.Uint64()
	case "disk_bytes":
		m.DiskBytes = c.Uint64()
	case "incarnation":
		m.Incarnation = c.Uint64()
	case "eagle":
		m.Eagle = c.Boolean()
	case "silent":
		m.Silent = c.Boolean()
	case "source":
		m.Source = c.BoundedText(MaxEndpoint)
	default:
		c.Skip()
	}
}
