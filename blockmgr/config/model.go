package config

import "github.com/blockyard-ai/blockyard/layout"

// DefaultDTypeBytes is Model.DTypeBytes when it is zero: 16-bit floats.
const DefaultDTypeBytes = 2

// Model is the shape of one rank's part of a block.
type Model struct {
	// NumLayers is the number of layers, at least 1.
	NumLayers uint64
	// OuterDim is 2 when K and V lie apart, 1 for MLA and fused caches.
	OuterDim uint64
	// PageSize is the number of tokens in a block, at least 1.
	PageSize uint64
	// InnerDim is the number of elements per token, layer and outer index, at
	// least 1.
	InnerDim uint64
	// DTypeBytes is the size of an element, 1 (8-bit formats) to 8, default 2.
	DTypeBytes uint64
}

// Validate checks every field's range; the error names the first bad one.
func (m Model) Validate() error { return m.geometry(1).Validate() }

// BlockBytes is the size of one rank's part of a block.
func (m Model) BlockBytes() (uint64, error) {
	l, err := layout.NewFullyContiguous(m.geometry(1))
	if err != nil {
		return 0, err
	}
	return l.BlockBytes(), nil
}

// geometry is an allocation of n blocks.
func (m Model) geometry(n uint64) layout.Config {
	c := layout.Config{
		NumBlocks:  n,
		NumLayers:  m.NumLayers,
		OuterDim:   m.OuterDim,
		PageSize:   m.PageSize,
		InnerDim:   m.InnerDim,
		DTypeBytes: m.DTypeBytes,
	}
	if c.DTypeBytes == 0 {
		c.DTypeBytes = DefaultDTypeBytes
	}
	return c
}
