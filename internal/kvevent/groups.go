package kvevent

import (
	"encoding/binary"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

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
