package process

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"
)

// Values are the values of a command's settings by name, as text. They have credentials.
type Values map[string]string

// ValuesOf returns the values of flags.
func ValuesOf(flags []*kong.Flag) Values {
	values := make(Values)
	for _, f := range flags {
		values[f.Name] = fmt.Sprint(f.Target.Interface())
	}
	return values
}

// IsLive reports whether a flag is tagged as one whose value a running command takes over.
func IsLive(f *kong.Flag) bool { return f.Tag.Has("live") }

// Reloader takes over changed settings of a running command at SIGHUP.
type Reloader struct {
	Log *zap.Logger
	// Now are the values in effect.
	Now Values
	// Live reports whether a running command can take over a setting.
	Live func(name string) bool
	// Read reads and checks all settings. apply takes over the live ones; after an error of either
	// nothing has changed.
	Read func() (values Values, apply func() error, err error)
}

// Run reloads whenever hangups is filled, until ctx ends.
func (r *Reloader) Run(ctx context.Context, hangups <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			r.reload()
		}
	}
}

// reload applies the changed live settings, and logs the names of the changed settings. It logs no
// values: they may be credentials.
func (r *Reloader) reload() {
	values, apply, err := r.Read()
	if err == nil {
		err = apply()
	}
	if err != nil {
		r.Log.Error("settings are not reloaded; nothing has changed", zap.String("reason", OneLine(err)))
		return
	}
	var changed, waiting []string
	for name := range union(values, r.Now) {
		switch {
		case values[name] == r.Now[name]:
		case r.Live(name):
			changed = append(changed, name)
			r.Now[name] = values[name]
		default:
			waiting = append(waiting, name)
		}
	}
	slices.Sort(changed)
	slices.Sort(waiting)
	r.Log.Info("settings are reloaded", zap.Strings("changed", changed))
	if len(waiting) > 0 {
		r.Log.Warn("changed settings take effect at the next start", zap.Strings("settings", waiting))
	}
}

// union returns the names of a and b.
func union(a, b Values) map[string]bool {
	all := make(map[string]bool, len(a))
	for _, values := range []Values{a, b} {
		for name := range values {
			all[name] = true
		}
	}
	return all
}

// OneLine returns the text of an error without line breaks.
func OneLine(err error) string { return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ") }
