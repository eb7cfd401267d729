package pools

import (
	"fmt"
	"maps"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Resize changes the size of a tier; see blockmgr.Manager.Resize. A larger tier must fit into the node's
// memory and disk space beside what the tiers have, else the error is blockmgr.ErrSize. A dry run returns
// the error that Resize would return, and changes nothing; settled is nil then.
func (s *Set) Resize(kind kv.Tier, bytes uint64, dryRun bool) (settled <-chan struct{}, err error) {
	if err := s.manager.CheckResize(kind, bytes); err != nil {
		return nil, err
	}
	return s.admission.resize(s.manager, kind, bytes, dryRun)
}

// resize is Set.Resize. It measures the node, and delays the first sessions of namespaces meanwhile.
func (a *admission) resize(m *blockmgr.Manager, kind kv.Tier, bytes uint64, dryRun bool) (settled <-chan struct{}, err error) {
	a.checking.Lock()
	defer a.checking.Unlock()
	next := *a.tiers.Load()
	grows := bytes > next.HostBytes
	if kind == kv.TierHost {
		next.HostBytes, next.HostSetting = bytes, "resize"
	} else {
		grows = bytes > next.DiskBytes
		next.DiskBytes, next.DiskSetting = bytes, "resize"
	}
	a.mu.Lock()
	all := maps.Clone(a.admitted)
	a.mu.Unlock()
	want := wantOf(&next, all)
	if err := next.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", err, blockmgr.ErrSize)
	}
	space, err := next.Measure(a.log)
	if err != nil {
		return nil, err
	}
	if grows {
		if err := space.Check(want, a.log); err != nil {
			return nil, fmt.Errorf("%w: %w", err, blockmgr.ErrSize)
		}
	}
	if dryRun {
		return nil, nil
	}
	if settled, err = m.Resize(kind, bytes); err != nil {
		return nil, err
	}
	a.tiers.Store(&next)
	next.LimitHeapBeside(&space, want, a.log)
	return settled, nil
}
