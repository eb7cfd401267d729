package kv

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"

	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

//go:generate go tool msgp -file namespace.go -o namespace_gen.go -tests=false -io=false
//msgp:ignore NamespaceID namespaceField

// NamespaceID is the 128-bit fingerprint of a Namespace.
type NamespaceID [16]byte

// String returns the id in hexadecimal.
func (n NamespaceID) String() string { return hex.EncodeToString(n[:]) }

// ParseNamespaceID reads what String returns.
func ParseNamespaceID(s string) (NamespaceID, error) {
	k, err := ParseBlockKey(s)
	if err != nil {
		return NamespaceID{}, fmt.Errorf("namespace %q: want 32 hexadecimal digits", s)
	}
	return NamespaceID(k), nil
}

// Namespace is everything that must be equal for the bytes of two blocks with
// equal tokens to be interchangeable. It belongs to a session; LoRA and salt
// belong to a request.
type Namespace struct {
	// Model is the served model's name.
	Model string `json:"model" msg:"model"`
	// Weights is the connector's fingerprint of the weights and of the effective
	// configuration: file names, sizes, headers, quantization, KV scales.
	Weights string `json:"weights" msg:"weights"`
	// DType is the KV cache's element type, such as "bfloat16" or "fp8_e4m3".
	DType string `json:"dtype" msg:"dtype"`
	// Layers, OuterDim (2 for K and V, 1 for MLA), BlockSize (tokens), InnerDim
	// (elements per token, layer and outer index, of all local ranks) and
	// DTypeBytes are the geometry of one block.
	Layers     uint32 `json:"num_layers" msg:"num_layers"`
	OuterDim   uint32 `json:"outer_dim" msg:"outer_dim"`
	BlockSize  uint32 `json:"page_size" msg:"page_size"`
	InnerDim   uint32 `json:"inner_dim" msg:"inner_dim"`
	DTypeBytes uint32 `json:"dtype_width_bytes" msg:"dtype_width_bytes"`
	// Layout names how the geometry lies in memory, such as "fully_contiguous".
	Layout string `json:"layout" msg:"layout"`
	// TP, PP and DCP are the tensor, pipeline and decode-context parallel sizes.
	TP  uint32 `json:"tp" msg:"tp"`
	PP  uint32 `json:"pp" msg:"pp"`
	DCP uint32 `json:"dcp" msg:"dcp"`
	// KVFormat is the engine's name for its KV format and version.
	KVFormat string `json:"kv_format" msg:"kv_format"`
	// Groups are the KV groups of a hybrid model, in the engine's order. Without them every layer
	// keeps the whole prompt, and the fields above are the geometry of a block.
	Groups []Group `json:"groups,omitempty" msg:"groups,omitempty,limit=64"`
}

// Group is one KV group of a hybrid model.
type Group struct {
	// Kind, Window, BlockSize and Eagle are the geometry (see kvgroup.Group). BlockSize is a
	// multiple of the namespace's.
	Kind      string `json:"kind" msg:"kind"`
	Window    uint32 `json:"window" msg:"window"`
	BlockSize uint32 `json:"block_size" msg:"block_size"`
	// BlockBytes is the size of a block's bytes in the group's layers and all local ranks.
	BlockBytes uint64 `json:"block_bytes" msg:"block_bytes"`
	// Layers is how many layers the group has.
	Layers uint32 `json:"layers" msg:"layers"`
	Eagle  bool   `json:"eagle" msg:"eagle"`
}

// KVGroups returns the geometry of the groups, nil for a model without groups.
func (n *Namespace) KVGroups() kvgroup.Groups {
	if len(n.Groups) == 0 {
		return nil
	}
	gs := make(kvgroup.Groups, len(n.Groups))
	for i, g := range n.Groups {
		gs[i] = kvgroup.Group{Kind: kvgroup.Kind(g.Kind), Window: g.Window, BlockSize: g.BlockSize, Eagle: g.Eagle}
	}
	return gs
}

// IsZero reports whether no field is set.
func (n *Namespace) IsZero() bool { return reflect.ValueOf(n).Elem().IsZero() }

// ID returns the first 16 bytes of the SHA-256 of "blockyard.namespace.v1" and of
// every field, in declaration order. A field is its name and its value as decimal
// or string. Each string has a length prefix, u32 little-endian. Groups follow only
// if there are any, so that a model without groups keeps its ID.
func (n *Namespace) ID() NamespaceID {
	b := appendLengthPrefixed(nil, "blockyard.namespace.v1")
	for _, f := range n.fields() {
		b = appendLengthPrefixed(b, f.name)
		b = appendLengthPrefixed(b, f.value)
	}
	sum := sha256.Sum256(b)
	return NamespaceID(sum[:16])
}

// BlockBytes returns the size of one block's bytes in all layers and local ranks. With groups it
// is the size of the largest group's block.
func (n *Namespace) BlockBytes() uint64 {
	if len(n.Groups) > 0 {
		largest := uint64(0)
		for _, g := range n.Groups {
			largest = max(largest, g.BlockBytes)
		}
		return largest
	}
	return uint64(n.Layers) * uint64(n.OuterDim) * uint64(n.BlockSize) * uint64(n.InnerDim) * uint64(n.DTypeBytes)
}

// Validate returns an error for the first field out of range. The names in it are those of the
// protocol.
func (n *Namespace) Validate() error {
	if n.Model == "" {
		return fmt.Errorf("namespace model: must not be empty")
	}
	for _, c := range []struct {
		name     string
		v        uint32
		min, max uint32
	}{
		{"num_layers", n.Layers, 1, maxLayers},
		{"outer_dim", n.OuterDim, 1, 2},
		{"page_size", n.BlockSize, 1, 4096},
		{"inner_dim", n.InnerDim, 1, 1 << 24},
		{"dtype_width_bytes", n.DTypeBytes, 1, 8},
		{"tp", n.TP, 1, 1024},
		{"pp", n.PP, 1, 1024},
		{"dcp", n.DCP, 1, 1024},
	} {
		if c.v < c.min || c.v > c.max {
			return fmt.Errorf("namespace %s: %d is not in %d..%d", c.name, c.v, c.min, c.max)
		}
	}
	if len(n.Groups) > 0 {
		return n.validateGroups()
	}
	if b := n.BlockBytes(); b > MaxBlockBytes {
		return fmt.Errorf("namespace geometry: a block of %d bytes exceeds %d", b, uint64(MaxBlockBytes))
	}
	return nil
}

// validateGroups returns an error for the first field of the groups that is out of range.
func (n *Namespace) validateGroups() error {
	if err := n.KVGroups().Validate(n.BlockSize); err != nil {
		return fmt.Errorf("namespace %w", err)
	}
	for i, g := range n.Groups {
		if g.BlockBytes < 1 || g.BlockBytes > MaxBlockBytes {
			return fmt.Errorf("namespace groups[%d] block_bytes: %d is not in 1..%d", i, g.BlockBytes, uint64(MaxBlockBytes))
		}
		if g.Layers < 1 || g.Layers > maxLayers {
			return fmt.Errorf("namespace groups[%d] layers: %d is not in 1..%d", i, g.Layers, maxLayers)
		}
	}
	return nil
}

// MaxBlockBytes bounds the size of one block. An extent is at most 1 GiB and
// must hold at least one.
const MaxBlockBytes = 256 << 20

const maxLayers = 4096

type namespaceField struct{ name, value string }

// fields returns every field as text, in the order that ID hashes. Another order or text would
// give all stored blocks another namespace.
func (n *Namespace) fields() []namespaceField {
	u := func(v uint32) string { return strconv.FormatUint(uint64(v), 10) }
	fields := []namespaceField{
		{"model", n.Model}, {"weights", n.Weights}, {"dtype", n.DType},
		{"num_layers", u(n.Layers)}, {"outer_dim", u(n.OuterDim)}, {"page_size", u(n.BlockSize)},
		{"inner_dim", u(n.InnerDim)}, {"dtype_width_bytes", u(n.DTypeBytes)}, {"layout", n.Layout},
		{"tp", u(n.TP)}, {"pp", u(n.PP)}, {"dcp", u(n.DCP)}, {"kv_format", n.KVFormat},
	}
	if len(n.Groups) > 0 {
		fields = append(fields, namespaceField{"groups", strconv.Itoa(len(n.Groups))})
	}
	for _, g := range n.Groups {
		fields = append(fields, []namespaceField{
			{"kind", g.Kind}, {"window", u(g.Window)}, {"block_size", u(g.BlockSize)},
			{"block_bytes", strconv.FormatUint(g.BlockBytes, 10)}, {"layers", u(g.Layers)}, {"eagle", strconv.FormatBool(g.Eagle)},
		}...)
	}
	return fields
}
