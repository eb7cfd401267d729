package admin

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// poolDump is one pool in GET /v1/pools, without its blocks.
type poolDump struct {
	Pool       uint64 `json:"pool"`
	Namespace  string `json:"namespace"`
	Model      string `json:"model"`
	BlockBytes uint64 `json:"block_bytes"`
	// Groups are the KV groups of a hybrid model. A block's group is an index of them.
	Groups kvgroup.Groups `json:"groups,omitempty"`
}

type blockDump struct {
	Key string `json:"key"`
	// Hash is the SequenceHash, 16 hexadecimal digits.
	Hash string `json:"hash"`
	// Group is the block's KV group, an index of the pool's groups.
	Group uint32        `json:"group,omitempty"`
	Tiers []string      `json:"tiers"`
	Host  *locationDump `json:"host,omitempty"`
	Disk  *locationDump `json:"disk,omitempty"`
}

type locationDump struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
}

// servePools lists every block, in chunks: a client that reads slowly holds up no pool and
// fills no memory.
func (c *control) servePools(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	response := http.NewResponseController(w)
	out := bufio.NewWriter(w)
	flush := func() error {
		// A writer without deadlines has the server's.
		_ = response.SetWriteDeadline(time.Now().Add(writeTimeout))
		return out.Flush()
	}
	// The client may have gone.
	_ = writePools(out, c.pools, flush)
}

// writePools writes the pools to w as a JSON array; the blocks of a pool are its list "blocks".
// flush sends to the client what w has buffered. writePools calls flush after each chunk of
// blocks and at the end, and returns its error.
func writePools(w io.Writer, pools Pools, flush func() error) error {
	if _, err := io.WriteString(w, "["); err != nil {
		return err
	}
	for i, p := range pools.Manager().Pools() {
		separator := ""
		if i > 0 {
			separator = ","
		}
		ns := p.Namespace()
		head, err := json.Marshal(poolDump{
			Pool: pools.ID(p.NamespaceID()), Namespace: p.NamespaceID().String(), Model: ns.Model, BlockBytes: p.BlockBytes(),
			Groups: ns.KVGroups(),
		})
		if err != nil {
			return err
		}
		// The list of blocks takes the place of the brace that closes the pool's object.
		if _, err := io.WriteString(w, separator+string(head[:len(head)-1])+`,"blocks":[`); err != nil {
			return err
		}
		if err := writeBlocks(w, p, flush); err != nil {
			return err
		}
		if _, err := io.WriteString(w, "]}"); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(w, "]\n"); err != nil {
		return err
	}
	return flush()
}

// writeBlocks writes the blocks of p as the elements of a JSON array, without its brackets. It
// calls flush after each chunk of blocks, and returns its error.
func writeBlocks(w io.Writer, p *blockmgr.Pool, flush func() error) error {
	separator := ""
	for chunk := range p.DumpChunks {
		for _, b := range chunk {
			block, err := json.Marshal(dumpBlock(b))
			if err != nil {
				return err
			}
			if _, err := io.WriteString(w, separator+string(block)); err != nil {
				return err
			}
			separator = ","
		}
		if err := flush(); err != nil {
			return err
		}
	}
	return nil
}

// dumpBlock returns a block as GET /v1/pools shows it: where its bytes lie in each tier.
func dumpBlock(b blockmgr.BlockInfo) blockDump {
	d := blockDump{Key: b.Block.Key.String(), Hash: fmt.Sprintf("%016x", uint64(b.Block.Seq)), Group: b.Block.Key.Group(), Tiers: []string{}}
	for _, t := range kv.Tiers {
		if b.Tiers.Has(t) {
			d.Tiers = append(d.Tiers, t.String())
		}
	}
	if b.Tiers.Has(kv.TierHost) {
		d.Host = &locationDump{Path: b.Host.Path, Offset: b.Host.Offset}
	}
	if b.Tiers.Has(kv.TierDisk) {
		d.Disk = &locationDump{Path: b.Disk.Path, Offset: b.Disk.Offset}
	}
	return d
}
