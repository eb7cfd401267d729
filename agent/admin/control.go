package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	// maxControlBody bounds the bytes of a body: as many tokens as a prompt may have, in
	// decimal.
	maxControlBody = 64 << 20
	// maxResetHashes bounds the hashes of one /v1/reset-blocks.
	maxResetHashes = 1 << 20
	// minKeep is the shortest time to keep blocks for.
	minKeep = time.Millisecond
)

// Pools are the pools of a node and their published ids. pools.Set implements it.
type Pools interface {
	Manager() *blockmgr.Manager
	ID(ns kv.NamespaceID) uint64
}

// control resets, keeps and lists the blocks of pools.
type control struct{ pools Pools }

// controlError is an answer with another status than 200.
type controlError struct {
	status int
	err    error
}

func (e *controlError) Error() string { return e.err.Error() }
func (e *controlError) Unwrap() error { return e.err }

func badRequest(format string, args ...any) error {
	return &controlError{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

// controlHandler makes a handler of do, which gets the decoded JSON body. The answer is do's
// result in JSON, or an error with the status that controlStatus gives.
func controlHandler[In, Out any](do func(In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		err := decodeControl(http.MaxBytesReader(w, r.Body, maxControlBody), &in)
		var out Out
		if err == nil {
			out, err = do(in)
		}
		if err != nil {
			writeError(w, controlStatus(err), err.Error())
			return
		}
		writeJSON(w, out)
	}
}

// decodeControl decodes one JSON object without unknown fields.
func decodeControl(body io.Reader, in any) error {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	err := d.Decode(in)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("more than one JSON value")
		}
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &controlError{http.StatusRequestEntityTooLarge, fmt.Errorf("body: more than %d bytes", tooLarge.Limit)}
	case err != nil:
		return badRequest("body: %w", err)
	}
	return nil
}

// controlStatus returns the HTTP status of an answer with err.
func controlStatus(err error) int {
	var c *controlError
	switch {
	case errors.As(err, &c):
		return c.status
	case errors.Is(err, blockmgr.ErrActive):
		return http.StatusConflict
	case errors.Is(err, blockmgr.ErrNoTier), errors.Is(err, blockmgr.ErrRetired):
		return http.StatusNotFound
	case errors.Is(err, blockmgr.ErrClosed):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// findPool returns the pool of the namespace that a body names.
func (c *control) findPool(namespace string) (*blockmgr.Pool, error) {
	id, err := kv.ParseNamespaceID(namespace)
	if err != nil {
		return nil, badRequest("%w", err)
	}
	for _, p := range c.pools.Manager().Pools() {
		if p.NamespaceID() == id {
			return p, nil
		}
	}
	return nil, &controlError{http.StatusNotFound, fmt.Errorf("namespace %q: no such pool is open", namespace)}
}

// controlTier parses the name of a tier. It takes both names of the host tier: "host", and the
// one in events and metrics.
func controlTier(name string) (kv.Tier, error) {
	switch name {
	case "host", kv.TierHost.String():
		return kv.TierHost, nil
	case "disk":
		return kv.TierDisk, nil
	}
	return 0, badRequest("tier %q: want host or disk", name)
}

// resetRequest is the body of POST /v1/reset. Without a namespace it means all pools; an empty
// namespace is an error.
type resetRequest struct {
	Namespace *string `json:"namespace"`
	Tier      string  `json:"tier"`
}

// resetAnswer lists the namespaces whose pools were emptied.
type resetAnswer struct {
	Reset []string `json:"reset"`
}

// reset empties a tier, or all tiers, of one pool or of all pools. It leaves a pool in use as
// it is. Of several pools it empties those before the first in use. A pool that was retired
// meanwhile is skipped.
func (c *control) reset(in resetRequest) (resetAnswer, error) {
	do := (*blockmgr.Pool).ResetAll
	if in.Tier != "all" {
		tier, err := controlTier(in.Tier)
		if err != nil {
			return resetAnswer{}, badRequest("tier %q: want host, disk or all", in.Tier)
		}
		do = func(p *blockmgr.Pool) error { return p.Reset(tier) }
	}
	pools := c.pools.Manager().Pools()
	if in.Namespace != nil {
		p, err := c.findPool(*in.Namespace)
		if err != nil {
			return resetAnswer{}, err
		}
		pools = []*blockmgr.Pool{p}
	}
	out := resetAnswer{Reset: []string{}}
	for _, p := range pools {
		err := do(p)
		if errors.Is(err, blockmgr.ErrRetired) && in.Namespace == nil {
			continue
		}
		if err != nil {
			return resetAnswer{}, fmt.Errorf("namespace %s, after %d pools were reset: %w", p.NamespaceID(), len(out.Reset), err)
		}
		out.Reset = append(out.Reset, p.NamespaceID().String())
	}
	return out, nil
}

// hashText is a SequenceHash in JSON. It is written as 16 hexadecimal digits, as in /v1/pools,
// and read as those or as a decimal number.
type hashText kv.SequenceHash

// MarshalText implements encoding.TextMarshaler.
func (h hashText) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(h)), nil }

// UnmarshalJSON implements json.Unmarshaler.
func (h *hashText) UnmarshalJSON(b []byte) error {
	digits, base := string(b), 10
	if len(b) == 18 && b[0] == '"' && b[17] == '"' { // 16 digits in quotes
		digits, base = string(b[1:17]), 16
	}
	v, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		return fmt.Errorf("sequence hash %.40s: want 16 hexadecimal digits in quotes, or a whole number 0 to 2^64-1", b)
	}
	*h = hashText(v)
	return nil
}

// hashesText makes hashes a list that is never null.
func hashesText(hashes []kv.SequenceHash) []hashText {
	out := make([]hashText, len(hashes))
	for i, h := range hashes {
		out[i] = hashText(h)
	}
	return out
}

// resetBlocksRequest is the body of POST /v1/reset-blocks.
type resetBlocksRequest struct {
	Namespace string     `json:"namespace"`
	Tier      string     `json:"tier"`
	Hashes    []hashText `json:"sequence_hashes"`
}

// resetBlocksAnswer lists the hashes that were reset, were not in the tier, or were in use and
// stay.
type resetBlocksAnswer struct {
	Reset    []hashText `json:"reset_blocks"`
	NotFound []hashText `json:"not_found"`
	NotReset []hashText `json:"not_reset"`
}

// resetBlocks removes blocks from one tier of a pool. Blocks in use stay.
func (c *control) resetBlocks(in resetBlocksRequest) (resetBlocksAnswer, error) {
	tier, err := controlTier(in.Tier)
	if err != nil {
		return resetBlocksAnswer{}, err
	}
	if n := len(in.Hashes); n == 0 || n > maxResetHashes {
		return resetBlocksAnswer{}, badRequest("sequence_hashes: %d items, want 1..%d", n, maxResetHashes)
	}
	p, err := c.findPool(in.Namespace)
	if err != nil {
		return resetBlocksAnswer{}, err
	}
	hashes := make([]kv.SequenceHash, len(in.Hashes))
	for i, h := range in.Hashes {
		hashes[i] = kv.SequenceHash(h)
	}
	r, err := p.ResetBlocks(tier, hashes)
	if err != nil {
		return resetBlocksAnswer{}, err
	}
	return resetBlocksAnswer{hashesText(r.Reset), hashesText(r.NotFound), hashesText(r.NotReset)}, nil
}

// keepRequest is the body of POST /v1/keep: a prompt with the fields of OPEN.
type keepRequest struct {
	Namespace string   `json:"namespace"`
	Tokens    []uint32 `json:"tokens"`
	LoRA      string   `json:"lora"`
	Salt      string   `json:"salt"`
	TTL       float64  `json:"ttl_seconds"`
}

// keepAnswer has the number of kept blocks, and of the prompt's complete blocks.
type keepAnswer struct {
	Kept   int `json:"kept"`
	Blocks int `json:"blocks"`
}

// keep protects the resident blocks of a prompt from eviction for a time.
func (c *control) keep(in keepRequest) (keepAnswer, error) {
	p, err := c.findPool(in.Namespace)
	if err != nil {
		return keepAnswer{}, err
	}
	ns := p.Namespace()
	if n := len(in.Tokens); n < int(ns.BlockSize) || n > proto.MaxTokens {
		return keepAnswer{}, badRequest("tokens: %d items, want %d (one block) to %d", n, ns.BlockSize, proto.MaxTokens)
	}
	if most := blockmgr.MaxKeep.Seconds(); in.TTL < minKeep.Seconds() || in.TTL > most {
		return keepAnswer{}, badRequest("ttl_seconds %v: want %v to %.0f", in.TTL, minKeep.Seconds(), most)
	}
	keys := promptKeys(&ns, &in)
	kept, err := p.Keep(keys, time.Duration(in.TTL*float64(time.Second)))
	return keepAnswer{kept, len(keys)}, err
}

// promptKeys returns the keys of a prompt's complete blocks, as a session computes them from
// the engine's OPEN. With KV groups they are the blocks that a later request needs to have the whole
// prompt: those of each group at the last tokens where all groups have the end of a block.
func promptKeys(ns *kv.Namespace, in *keepRequest) []kv.StoredKey {
	id, size := blockmgr.NewIdentifier(), int(ns.BlockSize)
	// A connector sends the hash of a long salt.
	root := id.Root(ns.ID(), in.LoRA, "", kv.BoundedName(in.Salt))
	chain := make([]blockmgr.Block, 0, len(in.Tokens)/size)
	for i := 0; i+size <= len(in.Tokens); i += size {
		if i == 0 {
			chain = append(chain, id.First(root, in.Tokens[:size]))
		} else {
			chain = append(chain, id.Next(&chain[len(chain)-1], in.Tokens[i:i+size]))
		}
	}
	gs := ns.KVGroups()
	if gs == nil {
		gs = kvgroup.Groups{{Kind: kvgroup.Full, BlockSize: ns.BlockSize}}
	}
	tokens := uint32(len(in.Tokens))
	tokens -= tokens % gs.Align()
	var keys []kv.StoredKey
	for g := range gs {
		gs[g].Eagle = false // a draft model computes the block above the prompt anew
		first, end := gs[g].Needs(tokens)
		for b := first; b < end; b++ {
			keys = append(keys, chain[gs[g].ChainBlock(b, ns.BlockSize)].Key.Block().InGroup(uint32(g)))
		}
	}
	return keys
}

// tierStatus counts a tier's slots by what a reset would do with them; see
// blockmgr.TierStatus.
type tierStatus struct {
	Active   int `json:"active"`
	Inactive int `json:"inactive"`
	Empty    int `json:"empty"`
}

// poolStatus is one pool in GET /v1/status. Tiers has the configured ones.
type poolStatus struct {
	Pool      uint64                `json:"pool"`
	Namespace string                `json:"namespace"`
	Model     string                `json:"model"`
	Tiers     map[string]tierStatus `json:"tiers"`
}

// statusOf returns the body of GET /v1/status.
func statusOf(pools Pools) []poolStatus {
	list := []poolStatus{}
	for _, p := range pools.Manager().Pools() {
		s := poolStatus{
			Pool: pools.ID(p.NamespaceID()), Namespace: p.NamespaceID().String(), Model: p.Namespace().Model,
			Tiers: map[string]tierStatus{},
		}
		for name, tier := range map[string]kv.Tier{"host": kv.TierHost, "disk": kv.TierDisk} {
			if st, err := p.Status(tier); err == nil { // an error says that there is no such tier, or that the agent stops
				s.Tiers[name] = tierStatus(st)
			}
		}
		list = append(list, s)
	}
	return list
}
