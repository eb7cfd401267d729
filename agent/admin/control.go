package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/blockyard-ai/blockyard/blockmgr"
	listener "github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// maxControlBody bounds the bytes of a body: as many tokens as a prompt may have, in
	// decimal.
	maxControlBody = 64 << 20
	// maxResetHashes bounds the hashes of one /v1/reset-blocks.
	maxResetHashes = 1 << 20
)

// Pools are the pools of a node and their published ids. pools.Set implements it.
type Pools interface {
	Manager() *blockmgr.Manager
	// Resize changes the size of a tier of the node; see pools.Set.Resize.
	Resize(kind kv.Tier, bytes uint64, dryRun bool) (settled <-chan struct{}, err error)
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

// body is the body of a request to change pools. about is what the log tells of it.
type body interface{ about() string }

// controlHandler makes a handler of do, which gets the decoded JSON body. The answer is do's
// result in JSON, or an error with the status that controlStatus gives.
func controlHandler[In body, Out any](do func(context.Context, In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		err := decodeControl(http.MaxBytesReader(w, r.Body, maxControlBody), &in)
		var out Out
		if err == nil {
			listener.About(r, in.about())
			out, err = do(r.Context(), in)
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
	case errors.Is(err, blockmgr.ErrActive), errors.Is(err, blockmgr.ErrSize):
		return http.StatusConflict
	case errors.Is(err, blockmgr.ErrNoTier), errors.Is(err, blockmgr.ErrNoTenant), errors.Is(err, blockmgr.ErrRetired):
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

// findPools returns the pool of a namespace, or all pools without one.
func (c *control) findPools(namespace *string) ([]*blockmgr.Pool, error) {
	if namespace == nil {
		return c.pools.Manager().Pools(), nil
	}
	p, err := c.findPool(*namespace)
	return []*blockmgr.Pool{p}, err
}

// aboutPools says in a log line which namespace a request names, and whether it changes anything.
func aboutPools(namespace *string, dryRun bool) string {
	text := "all namespaces"
	if namespace != nil {
		text = fmt.Sprintf("namespace %.32q", *namespace)
	}
	return text + aboutDryRun(dryRun)
}

// aboutDryRun returns what the log text of a dry run ends with, else nothing.
func aboutDryRun(dryRun bool) string {
	if dryRun {
		return ", dry run"
	}
	return ""
}

// resetRequest is the body of POST /v1/reset. Without a namespace it means all pools; an empty
// namespace is an error.
type resetRequest struct {
	Namespace *string `json:"namespace"`
	Tier      string  `json:"tier"`
	DryRun    bool    `json:"dry_run"`
}

func (r resetRequest) about() string {
	return fmt.Sprintf("tier %.16q, %s", r.Tier, aboutPools(r.Namespace, r.DryRun))
}

// resetAnswer lists the namespaces whose pools were emptied. A dry run lists those that would be, and
// counts their blocks in the tiers.
type resetAnswer struct {
	Reset  []string `json:"reset"`
	DryRun bool     `json:"dry_run,omitempty"`
	Blocks *int     `json:"blocks,omitempty"`
}

// reset empties a tier, or all tiers, of one pool or of all pools. It leaves a pool in use as
// it is. Of several pools it empties those before the first in use. A pool that was retired
// meanwhile is skipped.
func (c *control) reset(_ context.Context, in resetRequest) (resetAnswer, error) {
	out := resetAnswer{Reset: []string{}, DryRun: in.DryRun}
	do := (*blockmgr.Pool).ResetAll
	tiers := []kv.Tier{kv.TierHost, kv.TierDisk}
	if in.Tier != "all" {
		tier, err := controlTier(in.Tier)
		if err != nil {
			return resetAnswer{}, badRequest("tier %q: want host, disk or all", in.Tier)
		}
		tiers = []kv.Tier{tier}
		do = func(p *blockmgr.Pool) error { return p.Reset(tier) }
	}
	if in.DryRun {
		out.Blocks = new(int)
		do = func(p *blockmgr.Pool) error {
			n, err := tryReset(p, tiers)
			*out.Blocks += n
			return err
		}
	}
	pools, err := c.findPools(in.Namespace)
	if err != nil {
		return resetAnswer{}, err
	}
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

// tryReset returns how many slots a reset of the tiers would free, or the error with which it
// would fail. Of several tiers it skips those that the pool lacks.
func tryReset(p *blockmgr.Pool, tiers []kv.Tier) (blocks int, err error) {
	for _, tier := range tiers {
		s, err := p.Status(tier)
		switch {
		case errors.Is(err, blockmgr.ErrNoTier) && len(tiers) > 1:
			continue
		case err != nil:
			return 0, err
		case s.Active > 0:
			return 0, fmt.Errorf("tier %s: %d %w", tier, s.Active, blockmgr.ErrActive)
		}
		blocks += s.Inactive
	}
	return blocks, nil
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
	selection
	Tier string `json:"tier"`
}

func (r resetBlocksRequest) about() string {
	return fmt.Sprintf("tier %.16q, %s", r.Tier, r.selection.about())
}

// aboutHashes says in a log line which blocks a request names: the first eight.
func aboutHashes(hashes []hashText) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d hashes", len(hashes))
	for _, h := range hashes[:min(len(hashes), 8)] {
		fmt.Fprintf(&b, " %016x", uint64(h))
	}
	return b.String()
}

// sequenceHashes checks the number of hashes and returns them.
func sequenceHashes(in []hashText) ([]kv.SequenceHash, error) {
	if n := len(in); n == 0 || n > maxResetHashes {
		return nil, badRequest("sequence_hashes: %d items, want 1..%d", n, maxResetHashes)
	}
	hashes := make([]kv.SequenceHash, len(in))
	for i, h := range in {
		hashes[i] = kv.SequenceHash(h)
	}
	return hashes, nil
}

// resetBlocksAnswer lists the hashes that were reset, were not in the tier, or were in use and
// stay. Of a prompt or of all blocks, the hashes are those of the blocks in the tier.
type resetBlocksAnswer struct {
	Reset    []hashText `json:"reset_blocks"`
	NotFound []hashText `json:"not_found"`
	NotReset []hashText `json:"not_reset"`
	DryRun   bool       `json:"dry_run,omitempty"`
}

// resetBlocks removes the blocks of a selection from one tier of a pool. Blocks in use stay.
func (c *control) resetBlocks(_ context.Context, in resetBlocksRequest) (resetBlocksAnswer, error) {
	tier, err := controlTier(in.Tier)
	if err != nil {
		return resetBlocksAnswer{}, err
	}
	p, err := c.check(&in.selection)
	if err != nil {
		return resetBlocksAnswer{}, err
	}
	r, err := in.removeFrom(p, tier)
	if err != nil {
		return resetBlocksAnswer{}, err
	}
	return resetBlocksAnswer{hashesText(r.Reset), hashesText(r.NotFound), hashesText(r.NotReset), in.DryRun}, nil
}

// removeFrom removes the selected blocks from a tier. A dry run returns what it would remove. Blocks of a prompt are
// removed by key: blocks of an earlier adapter with the same name may have the same hashes.
func (s *selection) removeFrom(p *blockmgr.Pool, tier kv.Tier) (blockmgr.ResetResult, error) {
	if s.Hashes != nil {
		hashes, err := sequenceHashes(s.Hashes)
		if err != nil {
			return blockmgr.ResetResult{}, err
		}
		if s.DryRun {
			return p.TryResetBlocks(tier, hashes)
		}
		return p.ResetBlocks(tier, hashes)
	}
	found, _, err := s.resident(p, kv.TierMask(0).With(tier))
	if err != nil {
		return blockmgr.ResetResult{}, err
	}
	// Children leave before their parents.
	slices.SortFunc(found, func(a, b blockmgr.BlockInfo) int { return cmp.Compare(b.Block.Position, a.Block.Position) })
	return p.ResetSelected(tier, found, s.DryRun)
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
		for name, tier := range tierNames() {
			if st, err := p.Status(tier); err == nil { // an error says that there is no such tier, or that the agent stops
				s.Tiers[name] = tierStatus(st)
			}
		}
		list = append(list, s)
	}
	return list
}
