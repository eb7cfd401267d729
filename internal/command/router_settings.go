package command

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/config"
)

// settingFlags returns one flag for each setting of package router/config, for kong to embed. It
// builds a struct type at run time, because kong takes flags from struct tags. Values stay text, so
// that package config reads flags, variables and documents by one rule. Kong uses the variables for
// the help alone.
func settingFlags() kong.Plugins {
	var fields []reflect.StructField
	add := func(s *config.Setting, tag string) {
		value := reflect.TypeFor[settingText]()
		if s.Switch() {
			value, tag = reflect.TypeFor[settingSwitch](), tag+` negatable:""`
		}
		fields = append(fields, reflect.StructField{
			Name: "Flag" + strconv.Itoa(len(fields)), Type: value, Tag: reflect.StructTag(strings.TrimSpace(tag)),
		})
	}
	settings := config.Settings()
	for i := range settings {
		s := &settings[i]
		older := s.Flags[1:] // deprecated names of the same setting
		tag := tagOf("name", s.Flags[0])
		switch {
		case s.Group == config.GroupLater:
			tag += ` hidden:""`
		default:
			tag += tagOf("group", s.Group) + tagOf("env", strings.Join(s.Env, ",")) + tagOf("help", s.Help())
			if s.Optional() {
				tag += tagOf("placeholder", "VALUE") // the help says what an absent value does
			} else {
				tag += tagOf("default", s.CommandDefault())
			}
		}
		if !s.Switch() && len(older) > 0 {
			tag, older = tag+tagOf("aliases", strings.Join(older, ",")), nil
		}
		add(s, tag)
		// Kong cannot negate an alias, so the older names of a switch are flags too.
		for _, name := range older {
			add(s, tagOf("name", name)+` hidden:""`)
		}
	}
	return kong.Plugins{reflect.New(reflect.StructOf(fields)).Interface()}
}

// tagOf returns one key of a struct tag, with a space in front.
func tagOf(key, value string) string { return fmt.Sprintf(" %s:%s", key, strconv.Quote(value)) }

// settingText is the text of a flag.
type settingText string

// settingSwitch is the text of a flag that needs no value.
type settingSwitch string

// Decode implements kong.MapperValue.
func (s *settingText) Decode(ctx *kong.DecodeContext) error {
	return ctx.Scan.PopValueInto("text", (*string)(s))
}

// Decode implements kong.MapperValue.
func (s *settingSwitch) Decode(ctx *kong.DecodeContext) error {
	*s = "true"
	if next := ctx.Scan.Peek(); next.Type == kong.FlagValueToken {
		*s = settingSwitch(fmt.Sprint(ctx.Scan.Pop().Value))
	}
	return nil
}

// IsBool implements kong.BoolMapperValue.
func (*settingSwitch) IsBool() bool { return true }

// The front door is at port 8000 of all addresses, as Dynamo's frontend is.
const (
	defaultDoorHost = "0.0.0.0"
	defaultDoorPort = 8000
)

// resolvedSettings are the values that flags, variables and a document give together.
type resolvedSettings struct {
	config.Config
	notices []config.Notice
	given   []config.Given
	// flags are the settings that were given as flags, by their first names.
	flags map[string]string
	// plain are the values of the other flags.
	plain []note
}

// resolve sets r from the flags of k, the variables in environ, and a document. Flags win over
// variables, and variables over the document. The error names the wrong setting.
func (r *resolvedSettings) resolve(k *kong.Context, environ []string, from config.Sources) (err error) {
	if r.flags, err = givenSettings(k); err != nil {
		return err
	}
	from.Environ, from.Flags = environ, r.flags
	loaded, err := config.Resolve(from)
	if err != nil {
		return err
	}
	r.Config, r.notices, r.given = loaded.Config, loaded.Notices, loaded.Given
	return nil
}

// agree returns an error when args give one setting two different values under two of its names.
// When one name is repeated, the last value counts. agree parses args itself because kong does
// not tell a flag's aliases apart.
func agree(settings []config.Setting, args []string) error {
	said := make(map[string]string) // by name
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		// whole is true for --name=value; otherwise the value is the next argument.
		name, value, whole := strings.Cut(strings.TrimPrefix(args[i], "--"), "=")
		if !strings.HasPrefix(args[i], "--") {
			continue
		}
		s := settingOf(settings, name)
		if positive, negated := strings.CutPrefix(name, "no-"); s == nil && negated {
			if s = settingOf(settings, positive); s == nil || !s.Switch() {
				continue
			}
			name, value, whole = positive, "false", true
		}
		switch {
		case s == nil:
			continue
		case !whole && s.Switch():
			value = "true"
		case !whole && i+1 < len(args):
			i++
			value = args[i]
		}
		said[name] = value
	}
	for i := range settings {
		if err := settings[i].Agree(said); err != nil {
			return err
		}
	}
	return nil
}

func settingOf(settings []config.Setting, flag string) *config.Setting {
	at := slices.IndexFunc(settings, func(s config.Setting) bool { return slices.Contains(s.Flags, flag) })
	if at < 0 {
		return nil
	}
	return &settings[at]
}

// givenSettings returns the settings on the command line: the text of each value by the setting's
// first name. The error says that two names of one setting have different values.
func givenSettings(k *kong.Context) (map[string]string, error) {
	settings := config.Settings()
	if err := agree(settings, k.Args); err != nil {
		return nil, err
	}
	given := make(map[string]string)
	for _, p := range k.Path {
		if p.Flag == nil {
			continue
		}
		if s := settingOf(settings, p.Flag.Name); s != nil {
			given[s.Flags[0]] = fmt.Sprint(p.Flag.Target.Interface())
		}
	}
	return given, nil
}

// log warns of settings that are deprecated or have no effect. One more line has every
// setting and flag that differs from its default, with its source.
func (r *resolvedSettings) log(log *zap.Logger) {
	for _, n := range r.notices {
		log.Warn("setting "+n.String(), zap.String("setting", n.Field))
	}
	fields := make([]zap.Field, 0, len(r.given))
	for _, g := range r.given {
		fields = append(fields, zap.String(g.Name, fmt.Sprintf("%s (%s)", g.Value, g.Source)))
	}
	for _, n := range r.plain {
		if n.Source != fromDefault {
			fields = append(fields, zap.String(strings.ReplaceAll(n.Name, "-", "_"), n.Value+" ("+n.Source+")"))
		}
	}
	log.Info("configuration", fields...)
}

// doorAddress returns the address of the front door, where clients of the engines are served.
// open is true when the setting http_port or a worker server asks for the front door. servers is
// true when a flag names worker servers.
func (r *resolvedSettings) doorAddress(servers bool) (address string, open bool) {
	host, port := defaultDoorHost, uint32(defaultDoorPort)
	if r.HTTPPort != nil {
		port = *r.HTTPPort
	}
	if r.HTTPHost != nil {
		host = *r.HTTPHost
	}
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10)), servers || r.HTTPPort != nil
}

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
			panic(fmt.Sprintf("BUG: range tag: %v", err))
		}
		return int64(d)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("BUG: range tag: %v", err))
	}
	return n
}

// plainNotes returns the values of flags, each with its source: the flag, its variable, the line of
// --config or the default. It leaves out credentials, and the document, which the sources of its
// settings name.
func (c *Router) plainNotes(k *kong.Context, flags []*kong.Flag) []note {
	var notes []note
	for _, f := range flags {
		if f.Tag.Get("log") == "-" || f.Name == "router-config" {
			continue
		}
		source := fromDefault
		if slices.ContainsFunc(k.Path, func(p *kong.Path) bool { return p.Flag == f && !p.Resolved }) {
			source = "--" + f.Name
		} else if v, ok := c.file[f.Name]; ok && !setByVariable(f) {
			source = v.Origin
		} else if !isDefault(f) {
			source = strings.Join(f.Envs, ",")
		}
		if source != fromDefault && isDefault(f) {
			source = fromDefault
		}
		value := fmt.Sprint(f.Target.Interface())
		if list, ok := f.Target.Interface().([]string); ok {
			value = strings.Join(list, ",")
		}
		if strings.Contains(value, "://") {
			value = withoutPassword(value)
		}
		notes = append(notes, note{f.Name, value, source})
	}
	return notes
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
