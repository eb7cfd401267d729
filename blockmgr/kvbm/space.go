package kvbm

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/resource"
)

// checkSpace compares the tiers with what the node lets this process have, before
// anything is allocated. The error says what was asked for, what there is and
// which field to change.
func (t *tiers) checkSpace(log *zap.Logger) error {
	limits, err := resource.Read("/")
	if err != nil {
		log.Warn("the node's limits cannot be read: tiers are not checked against them", zap.Error(err))
	}
	host, hostHeld, err := t.host.space()
	if err != nil {
		return fmt.Errorf("host_layout: %w", err)
	}
	disk, diskHeld, err := t.disk.space()
	if err != nil {
		return fmt.Errorf("disk_layout: %w", err)
	}
	warnings, err := resource.Check(limits, host, disk, resource.Want{
		HostDir: t.host.dir, HostBytes: t.host.bytes, HostHeld: hostHeld, HostSetting: "host_layout num_blocks",
		DiskDir: t.disk.dir, DiskBytes: t.disk.bytes, DiskHeld: diskHeld, DiskSetting: "disk_layout num_blocks",
	})
	for _, w := range warnings {
		log.Warn("resources", zap.String("warning", w))
	}
	return err
}

// space is the file system that a tier is to lie on, and what the files of an
// earlier manager take there, which need no room again.
func (r *room) space() (s resource.Space, held uint64, err error) {
	if r.bytes == 0 {
		return s, 0, nil
	}
	if s, err = resource.SpaceOf(r.dir); err != nil {
		return s, 0, err
	}
	held, err = storage.HeldBytes(r.dir)
	return s, held, err
}
