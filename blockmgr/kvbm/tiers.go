package kvbm

import (
	"errors"
	"fmt"
	"io"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// tiers holds where host and disk lie.
type tiers struct {
	host, disk room
	// made are the storages of allocators. The manager closes them.
	made []io.Closer
}

// room is the memory or directory for the slots of a tier. A tier that is off has no bytes.
type room struct {
	bytes uint64
	dir   string
}

// findTiers checks the layouts and asks their allocators. The error names the first bad
// field, and leaves nothing open.
func findTiers(cfg *config.Config, p *Place, slotBytes uint64) (t tiers, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.host, err = t.find("host_layout", kv.TierHost, cfg.HostLayout, slotBytes); err != nil {
		return t, err
	}
	if t.disk, err = t.find("disk_layout", kv.TierDisk, cfg.DiskLayout, slotBytes); err != nil {
		return t, err
	}
	if t.host.dir == "" {
		t.host.dir = p.HostDir
	}
	if t.disk.dir == "" {
		t.disk.dir = p.Disk.Dir
	}
	if t.host.dir == "" && t.host.bytes+t.disk.bytes > 0 {
		return t, fmt.Errorf("place host_dir %q: must be set, because host_layout names no directory; blocks for the disk pass through it too", t.host.dir)
	}
	if t.disk.dir == "" && t.disk.bytes > 0 {
		return t, fmt.Errorf("place disk dir %q: must be set, because disk_layout names no directory", t.disk.dir)
	}
	return t, nil
}

// find returns the room that one tier's layout gives its blocks; without a layout none. It asks an
// allocator for the storage, which t.close closes. name is the layout's in errors.
func (t *tiers) find(name string, tier kv.Tier, l *config.Layout, slotBytes uint64) (room, error) {
	if l == nil {
		return room{}, nil
	}
	if l.Type != config.FullyContiguous {
		return room{}, fmt.Errorf("%s: layout_type %s: want %s, because blocks are kept in one piece",
			name, l.Type, config.FullyContiguous)
	}
	// At most 2^32 blocks of at most 2^28 bytes.
	r := room{bytes: l.NumBlocks * slotBytes}
	var s config.Storage
	switch {
	case len(l.Storage) > 0:
		s, name = l.Storage[0], name+": storage 0"
	case l.Allocator != nil:
		var err error
		if s, err = l.Allocator.Allocate(r.bytes); err != nil {
			return room{}, fmt.Errorf("%s: allocator: %d bytes: %w", name, r.bytes, err)
		}
		if c, ok := s.(io.Closer); ok {
			t.made = append(t.made, c)
		}
		name += ": the allocator's storage"
	default: // logical names no place
		return r, nil
	}
	if err := r.take(s, tier, l.NumBlocks, slotBytes); err != nil {
		return room{}, fmt.Errorf("%s %w", name, err)
	}
	return r, nil
}

// take checks that a storage has room for the slots, and records its directory if it has
// one.
func (r *room) take(s config.Storage, tier kv.Tier, blocks, slotBytes uint64) error {
	if s == nil {
		return errors.New("is nil: want one")
	}
	if s.Tier() != tier {
		return fmt.Errorf("is of tier %s: want %s", s.Tier(), tier)
	}
	if s.Bytes() < r.bytes {
		return fmt.Errorf("of %d bytes: want at least %d for %d blocks in slots of %d bytes, which are whole pages",
			s.Bytes(), r.bytes, blocks, slotBytes)
	}
	if at, ok := s.(config.Located); ok {
		if r.dir = at.Dir(); r.dir == "" {
			return fmt.Errorf("dir %q: want a directory", r.dir)
		}
	}
	return nil
}

// close closes the storages of allocators.
func (t *tiers) close() error {
	var errs []error
	for _, c := range t.made {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// node returns the node part of the configuration, without sink. Sizes are bytes of whole slots:
// they give an exact number of blocks, and blocks of an earlier model count too.
func (t *tiers) node(cfg *config.Config, p *Place) node.Tiers {
	c := blockmgr.Config{
		HostDir: t.host.dir, HostBytes: t.host.bytes, DiskDir: t.disk.dir, DiskBytes: t.disk.bytes,
		Transfers: p.Transfer.MaxConcurrent, TransferBatch: p.Transfer.MaxBatch,
		OpenDirect: p.Disk.OpenDirect, ZeroFill: p.Disk.ZeroFill, Log: p.Log,
	}
	if p.Disk.DisableDirectIO {
		c.DirectIO = blockmgr.DirectIOOff
	}
	if cfg.HostLayout != nil {
		c.Filter = cfg.HostLayout.OffloadFilter
	}
	return node.Tiers{Config: c, HostSetting: "host_layout num_blocks", DiskSetting: "disk_layout num_blocks"}
}
