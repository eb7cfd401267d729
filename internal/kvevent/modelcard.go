package kvevent

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kvgroup"
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

// maxGroup is the highest number of a group in an event.
const maxGroup = kvgroup.MaxGroups - 1

// Groups are the KV groups of a hybrid model in the order of their numbers in events: the primary
// group first, and the others as the engine has them. Equal groups are equal Groups, so that
// model cards are comparable. Make Groups with NewGroups.
//
// On the wire a group is a map:
//
//	kind        "full", "sliding", "chunked" or "state"
//	window      unsigned, in tokens; absent if 0
//	block_size  unsigned, in tokens
//	eagle       boolean; absent if false
type Groups string

// groupBytes is the size of one group in Groups: kind, window, block size and eagle.
const groupBytes = 1 + 4 + 4 + 1

// groupKinds are the kinds by their number in Groups.
var groupKinds = []kvgroup.Kind{kvgroup.Full, kvgroup.Sliding, kvgroup.Chunked, kvgroup.State}

// NewGroups returns the Groups of an engine's groups, and the number in events of each of them.
// Both are empty for an engine without groups. The groups must be valid.
func NewGroups(engine kvgroup.Groups) (g Groups, numbers []uint32) {
	if len(engine) == 0 {
		return "", nil
	}
	primary := engine.Primary()
	ordered := kvgroup.Groups{engine[primary]}
	numbers = make([]uint32, len(engine))
	for i := range engine {
		if i != primary {
			numbers[i] = uint32(len(ordered))
			ordered = append(ordered, engine[i])
		}
	}
	return packGroups(ordered), numbers
}

// packGroups returns the Groups of groups that are in the order of events.
func packGroups(ordered kvgroup.Groups) Groups {
	b := make([]byte, 0, groupBytes*len(ordered))
	for _, g := range ordered {
		b = append(b, byte(slices.Index(groupKinds, g.Kind)))
		b = binary.LittleEndian.AppendUint32(b, g.Window)
		b = binary.LittleEndian.AppendUint32(b, g.BlockSize)
		eagle := byte(0)
		if g.Eagle {
			eagle = 1
		}
		b = append(b, eagle)
	}
	return Groups(b)
}

// List returns the groups by their numbers in events, nil for none. The caller owns the list.
func (g Groups) List() kvgroup.Groups {
	var list kvgroup.Groups
	for b := []byte(g); len(b) >= groupBytes; b = b[groupBytes:] {
		list = append(list, kvgroup.Group{
			Kind: groupKinds[b[0]], Window: binary.LittleEndian.Uint32(b[1:]),
			BlockSize: binary.LittleEndian.Uint32(b[5:]), Eagle: b[9] != 0,
		})
	}
	return list
}

// append appends key and the groups as an array of maps.
func (g Groups) append(dst []byte, key string) []byte {
	list := g.List()
	dst = msgp.AppendString(dst, key)
	dst = msgp.AppendArrayHeader(dst, uint32(len(list)))
	for _, one := range list {
		keys := uint32(2)
		if one.Window != 0 {
			keys++
		}
		if one.Eagle {
			keys++
		}
		dst = msgp.AppendMapHeader(dst, keys)
		dst = appendTextPair(dst, "kind", string(one.Kind))
		if one.Window != 0 {
			dst = appendUint(dst, "window", uint64(one.Window))
		}
		dst = appendUint(dst, "block_size", uint64(one.BlockSize))
		if one.Eagle {
			dst = msgp.AppendBool(msgp.AppendString(dst, "eagle"), true)
		}
	}
	return dst
}

// readGroups reads an array of groups. Groups that kvgroup refuses fail c, and so does a list whose
// first group is not of kind "full".
func readGroups(c *msgpack.Reader) Groups {
	n := c.Array()
	if n > kvgroup.MaxGroups {
		c.Fail("%d groups, want at most %d", n, kvgroup.MaxGroups)
		return ""
	}
	var list kvgroup.Groups
	for range n {
		list = append(list, readGroup(c))
	}
	if c.Err != nil || n == 0 {
		return ""
	}
	// Which block sizes are possible depends on the size of a chain block, which may come later.
	if err := list.Validate(1); err != nil {
		c.Fail("%v", err)
		return ""
	}
	if list[0].Kind != kvgroup.Full {
		c.Fail("groups[0] kind %q, want %q", list[0].Kind, kvgroup.Full)
		return ""
	}
	return packGroups(list)
}

// readGroup reads one group. Unknown keys are skipped.
func readGroup(c *msgpack.Reader) (g kvgroup.Group) {
	for range c.Map() {
		switch string(c.Text()) {
		case "kind":
			g.Kind = kvgroup.Kind(c.BoundedText(maxKind))
		case "window":
			g.Window = c.Uint32()
		case "block_size":
			g.BlockSize = c.Uint32()
		case "eagle":
			g.Eagle = c.Boolean()
		default:
			c.Skip()
		}
	}
	return g
}

// maxKind bounds the text of a group's kind in bytes.
const maxKind = 16
