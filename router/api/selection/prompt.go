package selection

import (
	"errors"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
)

// prompt is a prompt by tokens, or by the hashes of its blocks and its length.
type prompt struct {
	TokenIDs     []uint32                 `json:"token_ids"`
	BlockMMInfos []*decide.BlockExtraInfo `json:"block_mm_infos"`
	// MMRoutingInfo replaces TokenIDs and BlockMMInfos when it has tokens.
	MMRoutingInfo *struct {
		Tokens       []uint32                 `json:"routing_token_ids"`
		BlockMMInfos []*decide.BlockExtraInfo `json:"block_mm_infos"`
	} `json:"mm_routing_info"`
	BlockHashes    []int64 `json:"block_hashes"`
	SequenceHashes []int64 `json:"sequence_hashes"`
	ISLTokens      *uint32 `json:"isl_tokens"`
	LoRAName       string  `json:"lora_name"`
	CacheSalt      string  `json:"cache_salt"`
	// IsEagle says that the worker hashes pairs of tokens. Absent is what the partition's
	// workers said.
	IsEagle *bool `json:"is_eagle"`
}

// Errors of prompts.
var (
	errNoBlocks   = errors.New("block_hashes is required without token_ids")
	errNoSequence = errors.New("sequence_hashes is required without token_ids")
	errNoLength   = errors.New("isl_tokens is required without token_ids")
	errEmpty      = errors.New("isl_tokens must be greater than 0")
)

// query returns the prompt as a query about the model m, with the hashes of its blocks, from
// tokens or as the client gave them. o overrides settings of the router and may be nil. With
// reservation the blocks' own hashes may be absent, because a booking needs the sequence hashes
// only.
func (p *prompt) query(r *router.Router, m *router.Model, o *config.Override, reservation bool) (*decide.Query, error) {
	q := &decide.Query{Model: m.Key().Name, LoRA: p.LoRAName, Salt: p.CacheSalt, Override: o}
	if mm := p.MMRoutingInfo; mm != nil && len(mm.Tokens) > 0 {
		q.Tokens, q.BlockMMInfos = mm.Tokens, mm.BlockMMInfos
	} else if p.TokenIDs != nil {
		q.Tokens, q.BlockMMInfos = p.TokenIDs, p.BlockMMInfos
	} else {
		var err error
		q.Hashed, err = p.hashed(reservation)
		return q, err
	}
	size := int(m.Key().BlockSize)
	if err := q.Validate(size); err != nil {
		return nil, err
	}
	locals := q.Locals(size, value(p.IsEagle, m.IsEagle()))
	sequence, tracked := r.Config().SequenceHashesForTracking(q.Tokens, size, o, q.LoRA, q.Salt, locals)
	if !tracked { // the answer has the hashes all the same
		sequence = kv.AppendSequence(nil, locals)
	}
	q.Hashed = &decide.Hashed{Tokens: len(q.Tokens), Locals: locals, Sequence: sequence}
	return q, nil
}

// hashed returns the hashes and the length of a prompt that came without tokens. The error names
// the field that is missing or wrong; with reservation fewer fields are required.
func (p *prompt) hashed(reservation bool) (*decide.Hashed, error) {
	switch {
	case p.BlockHashes == nil && !reservation:
		return nil, errNoBlocks
	case p.SequenceHashes == nil:
		return nil, errNoSequence
	case p.ISLTokens == nil:
		return nil, errNoLength
	case *p.ISLTokens == 0 && !reservation:
		return nil, errEmpty
	case p.BlockHashes != nil && len(p.BlockHashes) != len(p.SequenceHashes):
		return nil, fmt.Errorf("block_hashes length %d must match sequence_hashes length %d", len(p.BlockHashes), len(p.SequenceHashes))
	}
	h := &decide.Hashed{Tokens: int(*p.ISLTokens), Locals: make([]kv.LocalHash, len(p.BlockHashes)), Sequence: make([]kv.SequenceHash, len(p.SequenceHashes))}
	for i, b := range p.BlockHashes {
		h.Locals[i] = kv.LocalHash(b)
	}
	for i, b := range p.SequenceHashes {
		h.Sequence[i] = kv.SequenceHash(b)
	}
	return h, nil
}

// signed returns hashes as the signed numbers of the service.
func signed(hashes []kv.SequenceHash) []int64 {
	out := make([]int64, len(hashes))
	for i, h := range hashes {
		out[i] = int64(h)
	}
	return out
}
