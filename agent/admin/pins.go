package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	// minKeep is the shortest time to keep blocks for.
	minKeep = time.Millisecond
	// minFlush and maxFlush bound the time to wait of a request. An answer has writeTimeout.
	minFlush, maxFlush = time.Millisecond, 25 * time.Second
)

// selection names blocks of a namespace in one of three ways: the prompt that they hold, with the
// fields of OPEN; their hashes; or all that are resident.
type selection struct {
	Namespace string     `json:"namespace"`
	Tokens    []uint32   `json:"tokens"`
	LoRA      string     `json:"lora"`
	Salt      string     `json:"salt"`
	Hashes    []hashText `json:"sequence_hashes"`
	All       bool       `json:"all"`
	DryRun    bool       `json:"dry_run"`
}

func (s selection) about() string {
	what := "all blocks"
	switch {
	case s.Hashes != nil:
		what = aboutHashes(s.Hashes)
	case !s.All:
		what = fmt.Sprintf("a prompt of %d tokens", len(s.Tokens))
	}
	return what + ", " + aboutPools(&s.Namespace, s.DryRun)
}

// check returns the pool of the selection, or an error that names what is wrong with it.
func (c *control) check(s *selection) (*blockmgr.Pool, error) {
	p, err := c.findPool(s.Namespace)
	if err != nil {
		return nil, err
	}
	switch ways := btoi(s.Hashes != nil) + btoi(s.All) + btoi(s.Tokens != nil); {
	case ways > 1:
		return nil, badRequest("tokens, sequence_hashes, all: %d of them, want one", ways)
	case s.All:
	case s.Hashes != nil:
		_, err = sequenceHashes(s.Hashes)
	default:
		size := p.Namespace().BlockSize
		if n := len(s.Tokens); n < int(size) || n > proto.MaxTokens {
			err = badRequest("tokens: %d items, want %d (one block) to %d", n, size, proto.MaxTokens)
		}
	}
	return p, err
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sum calls do with the keys of the selected blocks, in one or more calls. It returns the sum of
// do's results and the number of keys, and stops at an error. With hashes and all the selected
// blocks are the resident ones.
func (s *selection) sum(p *blockmgr.Pool, do func([]kv.StoredKey) (int, error)) (done, blocks int, err error) {
	add := func(keys []kv.StoredKey) bool {
		var n int
		n, err = do(keys)
		done, blocks = done+n, blocks+len(keys)
		return err == nil
	}
	if s.Tokens != nil {
		ns := p.Namespace()
		add(promptKeys(&ns, s))
		return done, blocks, err
	}
	wanted := make(map[kv.SequenceHash]bool, len(s.Hashes))
	for _, h := range s.Hashes {
		wanted[kv.SequenceHash(h)] = true
	}
	var keys []kv.StoredKey
	p.DumpChunks(func(chunk []blockmgr.BlockInfo) bool {
		keys = keys[:0]
		for i := range chunk {
			if s.All || wanted[chunk[i].Block.Seq] {
				keys = append(keys, chunk[i].Block.Key)
			}
		}
		return add(keys)
	})
	return done, blocks, err
}

// resident returns the selected blocks that are in one of the tiers, in no order. ofPrompt has the number of each
// block of a prompt, by its key.
func (s *selection) resident(p *blockmgr.Pool, tiers kv.TierMask) (found []blockmgr.BlockInfo, ofPrompt map[kv.StoredKey]int, err error) {
	ofPrompt = make(map[kv.StoredKey]int)
	if s.Tokens != nil {
		ns := p.Namespace()
		for i, key := range promptKeys(&ns, s) {
			ofPrompt[key] = i
		}
	}
	hashes := make(map[kv.SequenceHash]bool, len(s.Hashes))
	for _, h := range s.Hashes {
		hashes[kv.SequenceHash(h)] = true
	}
	p.DumpChunks(func(chunk []blockmgr.BlockInfo) bool {
		for i := range chunk {
			_, wanted := ofPrompt[chunk[i].Block.Key]
			if chunk[i].Tiers&tiers != 0 && (s.All || wanted || hashes[chunk[i].Block.Seq]) {
				found = append(found, chunk[i])
			}
		}
		return len(found) <= maxResetHashes
	})
	if len(found) > maxResetHashes {
		return nil, nil, badRequest("more than %d resident blocks are selected", maxResetHashes)
	}
	return found, ofPrompt, nil
}

// keepRequest is the body of POST /v1/keep.
type keepRequest struct {
	selection
	TTL float64 `json:"ttl_seconds"`
}

func (r keepRequest) about() string { return fmt.Sprintf("%v seconds, %s", r.TTL, r.selection.about()) }

// keepAnswer has the number of kept blocks, and of the selected ones: those of a prompt, resident or
// not, or the resident ones of a list of hashes or of the namespace.
type keepAnswer struct {
	Kept   int  `json:"kept"`
	Blocks int  `json:"blocks"`
	DryRun bool `json:"dry_run,omitempty"`
}

// keep protects the resident blocks of a selection from eviction for a time. A dry run counts
// these blocks, and not whether half of the tier is kept by others.
func (c *control) keep(_ context.Context, in keepRequest) (keepAnswer, error) {
	p, err := c.check(&in.selection)
	if err != nil {
		return keepAnswer{}, err
	}
	if most := blockmgr.MaxKeep.Seconds(); in.TTL < minKeep.Seconds() || in.TTL > most {
		return keepAnswer{}, badRequest("ttl_seconds %v: want %v to %.0f", in.TTL, minKeep.Seconds(), most)
	}
	do := func(keys []kv.StoredKey) (int, error) {
		return p.Keep(keys, time.Duration(in.TTL*float64(time.Second)))
	}
	if in.DryRun {
		do = func(keys []kv.StoredKey) (int, error) {
			resident, _, err := p.Kept(keys)
			return resident, err
		}
	}
	out := keepAnswer{DryRun: in.DryRun}
	out.Kept, out.Blocks, err = in.sum(p, do)
	return out, err
}

// unkeepAnswer has the number of blocks whose time has ended, and of the selected ones.
type unkeepAnswer struct {
	Ended  int  `json:"ended"`
	Blocks int  `json:"blocks"`
	DryRun bool `json:"dry_run,omitempty"`
}

// unkeep lets the blocks of a selection be evicted again.
func (c *control) unkeep(_ context.Context, in selection) (unkeepAnswer, error) {
	p, err := c.check(&in)
	if err != nil {
		return unkeepAnswer{}, err
	}
	do := p.Unkeep
	if in.DryRun {
		do = func(keys []kv.StoredKey) (int, error) {
			_, kept, err := p.Kept(keys)
			return kept, err
		}
	}
	out := unkeepAnswer{DryRun: in.DryRun}
	out.Ended, out.Blocks, err = in.sum(p, do)
	return out, err
}

// promptKeys returns the keys of a prompt's complete blocks, as a session computes them from
// the engine's OPEN. With KV groups they are the blocks that a later request needs to have as much of
// the prompt as it can: those of each group at the last tokens where all groups have the end of a block.
func promptKeys(ns *kv.Namespace, in *selection) []kv.StoredKey {
	id := blockmgr.NewIdentifier()
	// A connector sends the hash of a long salt.
	root := id.Root(ns.ID(), in.LoRA, "", kv.BoundedName(in.Salt))
	chain := id.Prompt(root, in.Tokens, int(ns.BlockSize))
	gs := ns.KVGroups()
	if gs == nil {
		gs = kvgroup.Groups{{Kind: kvgroup.Full, BlockSize: ns.BlockSize}}
	}
	tokens := gs.Longest(uint32(len(in.Tokens)))
	var keys []kv.StoredKey
	for g := range gs {
		first, end := gs[g].Needs(tokens)
		for b := first; b < end; b++ {
			keys = append(keys, chain[gs[g].ChainBlock(b, ns.BlockSize)].Key.Block().InGroup(uint32(g)))
		}
	}
	return keys
}

// flushRequest is the body of POST /v1/flush. Without a namespace it means all pools.
type flushRequest struct {
	Namespace *string `json:"namespace"`
	Timeout   float64 `json:"timeout_seconds"`
	DryRun    bool    `json:"dry_run"`
}

func (r flushRequest) about() string { return aboutPools(r.Namespace, r.DryRun) }

// flushAnswer lists the namespaces: Flushed those without a seal, read or write that has not ended,
// Pending those with one.
type flushAnswer struct {
	Flushed []string `json:"flushed"`
	Pending []string `json:"pending"`
	DryRun  bool     `json:"dry_run,omitempty"`
}

// flush waits until pools have no operation: every block that the disk filter lets pass is on
// disk. A dry run does not wait.
func (c *control) flush(ctx context.Context, in flushRequest) (flushAnswer, error) {
	if err := checkTimeout(in.Timeout); err != nil {
		return flushAnswer{}, err
	}
	pools, err := c.findPools(in.Namespace)
	if err != nil {
		return flushAnswer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(in.Timeout*float64(time.Second)))
	defer cancel()
	out := flushAnswer{Flushed: []string{}, Pending: []string{}, DryRun: in.DryRun}
	for _, p := range pools {
		id := p.NamespaceID().String()
		if in.DryRun && p.Idle() || !in.DryRun && p.Quiesce(ctx) == nil {
			out.Flushed = append(out.Flushed, id)
		} else {
			out.Pending = append(out.Pending, id)
		}
	}
	return out, nil
}
