package node

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/resource"
)

// Space is a measurement of the node: memory limits, file systems, and the bytes there that
// this or an earlier manager holds.
type Space struct {
	// Host and Disk are the file systems of the tiers. A tier that is off has the zero Space.
	// Blocks pass through the host tier on their way to disk, so that any tier measures Host.
	Host, Disk         resource.Space
	limits             resource.Limits
	hostHeld, diskHeld uint64
}

// Measure measures the node now. Without readable limits it logs a warning, and limits are not
// checked.
func (t *Tiers) Measure(log *zap.Logger) (Space, error) {
	s, err := t.FileSystems()
	if err != nil {
		return s, err
	}
	if s.hostHeld, err = storage.HeldBytes(t.HostDir); err != nil {
		return s, fmt.Errorf("host directory: %w", err)
	}
	if s.diskHeld, err = storage.HeldBytes(t.DiskDir); err != nil {
		return s, fmt.Errorf("disk directory: %w", err)
	}
	if s.limits, err = resource.Read("/"); err != nil {
		log.Warn("the node's limits cannot be read: sizes and the heap are not checked against them", zap.Error(err))
	}
	return s, nil
}

// FileSystems measures only the file systems of the tiers that are on. With an error the result
// has what could be measured.
func (t *Tiers) FileSystems() (s Space, err error) {
	sizes := t.Sizes()
	host, disk := sizes[0], sizes[1]
	if host.On() || disk.On() {
		if s.Host, err = resource.SpaceOf(t.HostDir); err != nil {
			return s, fmt.Errorf("host directory: %w", err)
		}
	}
	if disk.On() {
		if s.Disk, err = resource.SpaceOf(t.DiskDir); err != nil {
			return s, fmt.Errorf("disk directory: %w", err)
		}
	}
	return s, nil
}

// Want returns what the tiers need of the node without a model. A tier with a number of blocks
// needs nothing yet.
func (t *Tiers) Want() resource.Want {
	w := resource.Want{
		HostDir: t.HostDir, HostBytes: t.HostBytes, HostSetting: t.HostSetting,
		DiskDir: t.DiskDir, DiskBytes: t.DiskBytes, DiskSetting: t.DiskSetting,
	}
	if t.HostBlocks != 0 {
		w.HostBytes = 0
	}
	if t.DiskBlocks != 0 {
		w.DiskBytes = 0
	}
	return w
}

// Check checks the needs of the tiers against the node. The error has the size asked for, the
// size available and the setting to change. Check logs warnings only when it returns no error.
func (s *Space) Check(want resource.Want, log *zap.Logger) error {
	want.HostHeld, want.DiskHeld = s.hostHeld, s.diskHeld
	warnings, err := resource.Check(s.limits, s.Host, s.Disk, want)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		log.Warn("warning about the node's resources", zap.String("warning", w))
	}
	return nil
}

// LimitHeapBeside limits the Go heap to what control groups leave beside the memory of the
// tiers. Without Tiers.LimitHeap it does nothing.
func (t *Tiers) LimitHeapBeside(s *Space, want resource.Want, log *zap.Logger) {
	if !t.LimitHeap {
		return
	}
	memory := want.Memory(s.Host, s.Disk)
	if limit, ok := resource.LimitHeap(s.limits, memory); ok {
		log.Info("heap limit is set", zap.Int64("bytes", limit), zap.Uint64("tier_memory", memory))
	}
}
