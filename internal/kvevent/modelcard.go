package kvevent

import (
	"fmt"
	"slices"
	"strings"

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
//	groups                  array of maps: see Groups
type ModelCard struct {
	// Endpoint is the URL where the worker's engine takes requests, at most
	// MaxEndpoint bytes.
	Endpoint string
	// Ranks is the number of data-parallel ranks of the worker's engine.
	Ranks uint32
	// DeviceBlocks is the capacity of a worker's device in blocks. HostBytes and
	// DiskBytes are the capacities of a pool's tiers.
	DeviceBlocks, HostBytes, DiskBytes uint64
	// MaxBatchedTokens is the most tokens that a worker computes in a step.
	MaxBatchedTokens uint64
	// Taints are the worker's labels.
	Taints Taints
	// Incarnation is random and new at every start of the worker's engine. A
	// restart of the agent does not change it: see HELLO in docs/protocol.md.
	Incarnation uint64
	// Eagle says that the engine hashes pairs of tokens: see kv.BlockTokens.
	Eagle bool
	// Silent says that the owner publishes no events. What the owner holds is
	// unknown.
	Silent bool
	// Source says who vouches for the owner if the owner's agent does not: "file",
	// "http", "dynamo" or "zmq".
	Source string
	// Groups are the KV groups of a hybrid model; empty for any other model.
	Groups Groups
}

// MaxEndpoint bounds the length of ModelCard.Endpoint and ModelCard.Source in bytes.
const MaxEndpoint = 2048

// MaxModel bounds the length of a model's name in bytes.
const MaxModel = 1024

// keys returns the number of pairs that append writes, for the header of the map.
func (m *ModelCard) keys() uint32 {
	var n uint32
	for _, set := range []bool{m.Endpoint != "", m.Ranks != 0, m.DeviceBlocks != 0, m.MaxBatchedTokens != 0,
		m.HostBytes != 0, m.DiskBytes != 0, m.Taints != "", m.Incarnation != 0, m.Eagle, m.Silent, m.Source != "", m.Groups != ""} {
		if set {
			n++
		}
	}
	return n
}

// append appends the fields of the card that are not zero as pairs of a map, whose header the
// caller has written with keys.
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
	if m.Groups != "" {
		dst = m.Groups.append(dst, "groups")
	}
	return dst
}

func appendTextPair(dst []byte, key, v string) []byte {
	dst = msgp.AppendString(dst, key)
	return msgp.AppendString(dst, v)
}

// field reads the value of key into the card. An unknown key is skipped.
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
	case "groups":
		m.Groups = readGroups(c)
	default:
		c.Skip()
	}
}

// Taints are the labels of a worker, for requests that require or prefer some: in
// order, each once, separated by commas. Equal labels are equal Taints. Make Taints
// with NewTaints.
type Taints string

const (
	// MaxTaints bounds the labels of a worker, MaxTaint the bytes of one.
	MaxTaints = 64
	MaxTaint  = 128
)

// NewTaints returns the Taints of a worker from its labels, sorted and each once. The error names a
// label that is empty, longer than MaxTaint, not printable ASCII, or has a comma or a space. More
// than MaxTaints labels are an error too.
func NewTaints(labels []string) (Taints, error) {
	if len(labels) > MaxTaints {
		return "", fmt.Errorf("taints: %d are more than %d", len(labels), MaxTaints)
	}
	for i, l := range labels {
		if l == "" || len(l) > MaxTaint {
			return "", fmt.Errorf("taints[%d]: %d bytes, want 1 to %d", i, len(l), MaxTaint)
		}
		if at := strings.IndexFunc(l, func(r rune) bool { return r <= ' ' || r > '~' || r == ',' }); at >= 0 {
			return "", fmt.Errorf("taints[%d]: %.64q has a character at %d that is no printable ASCII, or a comma or space", i, l, at)
		}
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(labels)))
	return Taints(strings.Join(sorted, ",")), nil
}

// List returns the labels in order, nil for none. The caller owns the list.
func (t Taints) List() []string {
	if t == "" {
		return nil
	}
	return strings.Split(string(t), ",")
}

// append appends key and the labels as an array of strings.
func (t Taints) append(dst []byte, key string) []byte {
	list := t.List()
	dst = msgp.AppendString(dst, key)
	dst = msgp.AppendArrayHeader(dst, uint32(len(list)))
	for _, label := range list {
		dst = msgp.AppendString(dst, label)
	}
	return dst
}

// readTaints reads an array of labels. Labels that NewTaints refuses fail c.
func readTaints(c *msgpack.Reader) Taints {
	n := c.Array()
	if n > MaxTaints {
		c.Fail("%d labels, want at most %d", n, MaxTaints)
		return ""
	}
	labels := make([]string, 0, n)
	for range n {
		labels = append(labels, c.BoundedText(MaxTaint))
	}
	if c.Err != nil {
		return ""
	}
	t, err := NewTaints(labels)
	if err != nil {
		c.Fail("%v", err)
	}
	return t
}
