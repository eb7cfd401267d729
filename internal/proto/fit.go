package proto

import (
	"context"

	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

//go:generate go tool msgp -file fit.go -o fit_gen.go -tests=false -io=false

// Fit asks for the longest prefix of a request that every KV group can serve (FIT). The
// answer pins nothing and reads nothing from disk: blocks may be gone when LOOKUP comes.
type Fit struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	// Tokens is the most tokens that the engine can use.
	Tokens uint32 `msg:"tokens"`
	// Align is what the prefix must be a multiple of, in tokens. 0 stands for the least
	// common multiple of the groups' block sizes, which every answer is a multiple of.
	Align uint32 `msg:"align,omitempty"`
}

// Fitted answers Fit (FITTED).
type Fitted struct {
	Request    uint64 `msg:"req"`
	Generation uint32 `msg:"gen"`
	// Tokens is the length of the prefix, 0 for none. Every group has all blocks that
	// kvgroup.Group.Needs names for it, in host memory or on disk.
	Tokens uint32 `msg:"tokens"`
}

// Validate implements Message.
func (m *Fit) Validate() error {
	return firstError(
		checkUint("tokens", uint64(m.Tokens), 0, MaxTokens),
		checkUint("align", uint64(m.Align), 0, kvgroup.MaxBlockSize),
	)
}

// Validate implements Message.
func (m *Fitted) Validate() error { return checkUint("tokens", uint64(m.Tokens), 0, MaxTokens) }

// Fit returns the length in tokens of the longest prefix of a request that every KV group can
// serve: at most limit, and a multiple of align, which may be 0. Fit pins nothing.
func (c *SchedulerClient) Fit(ctx context.Context, r RequestID, limit, align int) (int, error) {
	if err := checkRun(TypeFit, limit, align); err != nil {
		return 0, err
	}
	var a Fitted
	m := Fit{Request: r.ID, Generation: r.Generation, Tokens: uint32(limit), Align: uint32(align)}
	err := c.call(ctx, TypeFit, &m, TypeFitted, &a)
	return int(a.Tokens), err
}
