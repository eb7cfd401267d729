package command

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/config"
)

// plainFlags returns the flags of the router that kong's tags declare: all that are not settings
// of package router/config.
func plainFlags(flags []*kong.Flag) []*kong.Flag {
	settings := config.Settings()
	return slices.DeleteFunc(slices.Clone(flags), func(f *kong.Flag) bool {
		return f.Group == nil || settingOf(settings, f.Name) != nil
	})
}

// checkRanges returns an error that names each flag whose value is outside its tag "range", such as
// 0..1048576 or 100ms..1h, with the value and the range.
func checkRanges(flags []*kong.Flag) (err error) {
	for _, f := range flags {
		if low, high, ok := strings.Cut(f.Tag.Get("range"), ".."); ok {
			v := f.Target
			if n := magnitude(v); n < bound(v.Type(), low) || n > bound(v.Type(), high) {
				err = errors.Join(err, fmt.Errorf("--%s: %v is not in %s..%s", f.Name, v.Interface(), low, high))
			}
		}
	}
	return err
}

// magnitude returns the number of a flag that has a range, a duration in nanoseconds.
func magnitude(v reflect.Value) int64 {
	if v.CanUint() {
		return int64(v.Uint()) //nolint:gosec // flags have at most 32 bits
	}
	return v.Int()
}

// bound returns the number that text is for a flag of a type. It panics at a tag that is not one.
func bound(of reflect.Type, text string) int64 {
	if of == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		if err != nil {
			panic(err)
		}
		return int64(d)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// givenFlags returns the flags whose values are not the default, for the log, each with its source:
// the flag or its variable. It leaves out credentials, and
// the document, which the sources of its settings name.
func givenFlags(k *kong.Context, flags []*kong.Flag) []zap.Field {
	var fields []zap.Field
	for _, f := range flags {
		if f.Tag.Get("log") == "-" || f.Name == "router-config" || isDefault(f) {
			continue
		}
		source := strings.Join(f.Envs, ",")
		if slices.ContainsFunc(k.Path, func(p *kong.Path) bool { return p.Flag == f }) {
			source = "--" + f.Name
		}
		value := fmt.Sprint(f.Target.Interface())
		if list, ok := f.Target.Interface().([]string); ok {
			value = strings.Join(list, ",")
		}
		if strings.Contains(value, "://") {
			value = withoutPassword(value)
		}
		fields = append(fields, zap.String(strings.ReplaceAll(f.Name, "-", "_"), fmt.Sprintf("%s (%s)", value, source)))
	}
	return fields
}

// isDefault returns whether a flag has the value of its tag "default", or none without the tag.
func isDefault(f *kong.Flag) bool {
	switch v := f.Target; {
	case f.Default == "":
		return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0
	case v.Type() == reflect.TypeFor[time.Duration]():
		return v.Int() == bound(v.Type(), f.Default)
	default:
		return fmt.Sprint(v.Interface()) == f.Default
	}
}
