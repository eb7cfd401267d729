package command

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/blockyard-ai/blockyard/router/config"
)

// settingFlags returns the flags of the settings of package router/config, for kong to
// embed. Values stay text, so that package config reads flags, variables and documents
// by one rule. Kong reads the variables for the help alone.
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
		older := s.Flags[1:]
		tag := tagOf("name", s.Flags[0])
		switch {
		case s.Group == config.GroupLater:
			tag += ` hidden:""`
		default:
			tag += tagOf("group", s.Group) + tagOf("env", strings.Join(s.Env, ",")) +
				tagOf("default", s.CommandDefault()) + tagOf("help", s.Help())
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
