package agent

import (
	"fmt"
	"math"
	"runtime/debug"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/resource"
)

// SpaceStats are what there is for the agent, in bytes.
type SpaceStats struct {
	// The sizes of the file systems that the tiers lie on; zero for a tier that is
	// off.
	HostFree  uint64 `json:"host_free"`
	HostTotal uint64 `json:"host_total"`
	DiskFree  uint64 `json:"disk_free"`
	DiskTotal uint64 `json:"disk_total"`
	// HeapLimit is what the Go heap is kept below; zero for no limit.
	HeapLimit int64 `json:"heap_limit"`
}

// checkSpace compares the tiers' sizes with what the node lets this process have,
// before anything is allocated. The error says what was asked for, what there is
// and which setting to change. held is what an earlier agent's host tier takes.
func checkSpace(cfg *Config, log *zap.Logger) (held uint64, err error) {
	host, disk, err := tierSpaces(cfg)
	if err != nil {
		return 0, err
	}
	limits, err := resource.Read("/")
	if err != nil {
		log.Warn("the node's limits cannot be read: sizes are not checked against them", zap.Error(err))
	}
	want := resource.Want{
		HostDir: cfg.HostDir, HostBytes: cfg.HostBytes, HostSetting: cfg.HostSetting,
		DiskDir: cfg.DiskDir, DiskBytes: cfg.DiskBytes, DiskSetting: cfg.DiskSetting,
	}
	if want.HostHeld, err = resource.HeldBytes(cfg.HostDir); err != nil {
		return 0, fmt.Errorf("host directory: %w", err)
	}
	if want.DiskHeld, err = resource.HeldBytes(cfg.DiskDir); err != nil {
		return 0, fmt.Errorf("disk directory: %w", err)
	}
	warnings, err := resource.Check(limits, host, disk, want)
	for _, w := range warnings {
		log.Warn("resources", zap.String("warning", w))
	}
	return want.HostHeld, err
}

// tierSpaces looks at the file systems of the tiers that are on.
func tierSpaces(cfg *Config) (host, disk resource.Space, err error) {
	if cfg.HostBytes != 0 {
		if host, err = resource.SpaceOf(cfg.HostDir); err != nil {
			return host, disk, fmt.Errorf("host directory: %w", err)
		}
	}
	if cfg.DiskBytes != 0 {
		if disk, err = resource.SpaceOf(cfg.DiskDir); err != nil {
			return host, disk, fmt.Errorf("disk directory: %w", err)
		}
	}
	return host, disk, nil
}

// space is what the tiers' file systems have now. A size that cannot be read is
// zero.
func (a *Agent) space() SpaceStats {
	host, disk, _ := tierSpaces(&a.cfg)
	s := SpaceStats{HostFree: host.Free, HostTotal: host.Total, DiskFree: disk.Free, DiskTotal: disk.Total}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 { // which only asks
		s.HeapLimit = limit
	}
	return s
}
