package node

import (
	"cmp"
	"fmt"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// Tiers is the node part of a configuration: the host and the disk tier, without a model.
type Tiers struct {
	// Config configures the block manager.
	blockmgr.Config
	// HostSetting and DiskSetting name the settings behind the sizes of the tiers, for
	// messages. Empty: no name.
	HostSetting, DiskSetting string
	// LimitHeap keeps the Go heap of the process below what control groups leave beside the
	// tiers, unless GOMEMLIMIT is set. It is for a process that is nothing but an agent.
	LimitHeap bool
}

// Open checks the sizes of the tiers against the node's memory and disk space. It then opens
// the block manager, which locks the tiers' directories. A size that is too large makes nothing:
// the error has the size asked for, the size available and the setting to change. The result
// includes the measurement of the node.
func Open(t *Tiers, log *zap.Logger) (*blockmgr.Manager, Space, error) {
	s, err := t.Measure(log)
	if err != nil {
		return nil, s, err
	}
	if err := s.Check(t.Want(), log); err != nil {
		return nil, s, err
	}
	t.LimitHeapBeside(&s, t.Want(), log)
	m, err := blockmgr.Open(t.Config)
	if err != nil {
		return nil, s, err
	}
	log.Info("tiers have their sizes",
		zap.String("host_dir", t.HostDir), zap.Uint64("host_bytes", t.HostBytes), zap.Uint64("host_blocks", t.HostBlocks),
		zap.String("disk_dir", t.DiskDir), zap.Uint64("disk_bytes", t.DiskBytes), zap.Uint64("disk_blocks", t.DiskBlocks))
	if t.BypassesHost() {
		log.Info("the host tier is bypassed: blocks pass through a staging extent on their way to and from disk", zap.String("host_dir", t.HostDir))
	}
	return m, s, nil
}

// Validate checks the sizes of the tiers. The error names the setting to change.
func (t *Tiers) Validate() error {
	for _, s := range t.Sizes() {
		if s.Blocks > blockmgr.MaxBlocks {
			return fmt.Errorf("%s size of %d blocks%s: want at most %d", s.Name, s.Blocks, s.Setting, uint64(blockmgr.MaxBlocks))
		}
		extent := cmp.Or(t.ExtentBytes, blockmgr.ExtentBytesFor(s.Bytes))
		n := s.Bytes / extent
		if n <= blockmgr.MaxExtents || extent < storage.PageSize { // Config.Validate refuses the latter
			continue
		}
		// the least extent size with which the tier has at most MaxExtents, in whole pages
		least := (s.Bytes/blockmgr.MaxExtents + storage.PageSize) / storage.PageSize * storage.PageSize
		if least > blockmgr.MaxExtentBytes {
			return fmt.Errorf("%s size %v%s: want at most %v", s.Name, bytesize.Size(s.Bytes), s.Setting, bytesize.Size(blockmgr.MaxExtents*blockmgr.MaxExtentBytes))
		}
		return fmt.Errorf("%s size %v%s: makes %d extents of the extent size %v, want at most %d: an extent size of at least %v, or a smaller tier",
			s.Name, bytesize.Size(s.Bytes), s.Setting, n, bytesize.Size(extent), blockmgr.MaxExtents, bytesize.Size(least))
	}
	return t.Config.Validate()
}

// Extents returns the number of extents of full tiers. Each is an open file.
func (t *Tiers) Extents() (n int) {
	for _, s := range t.Sizes() {
		n += int(s.Bytes / cmp.Or(t.ExtentBytes, blockmgr.ExtentBytesFor(s.Bytes)))
	}
	return n
}

// Size is the size of one tier.
type Size struct {
	// Name is "host" or "disk". Setting is the setting behind the size, in brackets after a
	// blank; empty without one. Both are for messages.
	Name, Setting string
	Bytes, Blocks uint64
}

// On reports whether the tier has a size.
func (s Size) On() bool { return s.Bytes != 0 || s.Blocks != 0 }

// Sizes returns the sizes of the host tier and of the disk tier.
func (t *Tiers) Sizes() [2]Size {
	return [2]Size{
		{"host", inBrackets(t.HostSetting), t.HostBytes, t.HostBlocks},
		{"disk", inBrackets(t.DiskSetting), t.DiskBytes, t.DiskBlocks},
	}
}

func inBrackets(setting string) string {
	if setting == "" {
		return ""
	}
	return " (" + setting + ")"
}
