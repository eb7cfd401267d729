package kvbm

import (
	"cmp"
	"context"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
)

// Engine is an engine whose events the consolidator merges with the manager's. The zero value is
// none.
type Engine struct {
	// Kind is the engine's kind, in a spelling of config.ParseEventSource.
	Kind string
	// Events is the ZMQ endpoint on which the engine publishes; see config.Env.Consolidator.
	Events string
}

// NewFromEnviron is New for a manager that KVBM's environment variables configure. environ has
// NAME=value strings, such as os.Environ returns.
//
// The variables decide the layouts of host and disk, the filter between them, the consolidator,
// place.Disk and place.Transfer. The caller sets the other fields of cfg and place.
// place.Disk.Dir counts when no variable names a directory. Warnings about variables go to
// place.Log. The error names the variables with a bad value, or those of which one must be set.
func NewFromEnviron(ctx context.Context, environ []string, engine Engine, cfg config.Config, place Place) (*Manager, error) {
	env, warnings, err := config.FromEnviron(environ)
	if err != nil {
		return nil, err
	}
	if err := env.CheckTiers(); err != nil {
		return nil, err
	}
	if err := takeLayouts(&env, &cfg, &place); err != nil {
		return nil, err
	}
	if cfg.Consolidator, err = engine.consolidator(&env); err != nil {
		return nil, err
	}
	dir := place.Disk.Dir
	place.Disk, place.Transfer = env.DiskFiles, env.Transfer
	place.Disk.Dir = cmp.Or(env.DiskFiles.Dir, dir)
	log := cmp.Or(place.Log, zap.NewNop())
	for _, w := range warnings {
		log.Warn("warning about the environment", zap.String("warning", w))
	}
	return New(ctx, cfg, place)
}

// takeLayouts sets the layouts of host and disk in cfg to the tiers' sizes in the environment. A
// slot holds the parts of all of the place's ranks.
func takeLayouts(env *config.Env, cfg *config.Config, place *Place) error {
	blockBytes, err := place.blockBytes(cfg.Model)
	if err != nil {
		return err
	}
	host, disk, err := env.Blocks(blockBytes)
	if err != nil {
		return err
	}
	cfg.HostLayout, cfg.DiskLayout = nil, nil
	if disk > 0 {
		cfg.DiskLayout = &config.Layout{NumBlocks: disk, Logical: config.LeaderWorkerSharded}
	}
	if host == 0 {
		return nil
	}
	cfg.HostLayout = &config.Layout{NumBlocks: host, Logical: config.LeaderWorkerSharded}
	if disk > 0 && !env.Offload.DisableDiskFilter {
		cfg.HostLayout.OffloadFilter, err = policy.NewFrequencyFilter(policy.FrequencyOptions{})
	}
	return err
}

// consolidator returns the consolidator of the engine, nil when there is no engine or the
// environment turns consolidation off.
func (e Engine) consolidator(env *config.Env) (*config.Consolidator, error) {
	if e == (Engine{}) {
		return nil, nil
	}
	kind, err := config.ParseEventSource(e.Kind)
	if err != nil {
		return nil, err
	}
	c, on, err := env.Consolidator(kind, e.Events)
	if err != nil || !on {
		return nil, err
	}
	return &c, nil
}
