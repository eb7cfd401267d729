package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// schemaOf returns the schema of a type. A request may leave out fields and may not have
// others; an answer has all fields but those with omitempty.
func schemaOf(t reflect.Type, request bool) object {
	switch t.Kind() {
	case reflect.Pointer:
		s := maps.Clone(schemaOf(t.Elem(), request))
		if kind, ok := s["type"].(string); ok {
			s["type"] = []any{kind, "null"}
		}
		return s
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint32:
		return object{"type": "integer", "minimum": 0, "maximum": uint64(math.MaxUint32)}
	case reflect.Uint64:
		return object{"type": "integer", "minimum": 0, "format": "uint64"}
	case reflect.Slice:
		return object{"type": "array", "items": schemaOf(t.Elem(), request)}
	case reflect.Array:
		return object{"type": "array", "items": schemaOf(t.Elem(), request), "minItems": t.Len(), "maxItems": t.Len()}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": schemaOf(t.Elem(), request)}
	case reflect.Interface:
		return object{}
	case reflect.Struct:
		properties, required := object{}, []any{}
		addFields(t, request, properties, &required)
		s := object{"type": "object", "properties": properties, "additionalProperties": false}
		if !request && len(required) > 0 {
			s["required"] = required
		}
		return s
	}
	panic("BUG: no schema for " + t.String())
}

// addFields adds the fields of a struct, embedded ones included.
func addFields(t reflect.Type, request bool, properties object, required *[]any) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			addFields(f.Type, request, properties, required)
		case name != "" && name != "-":
			properties[name] = schemaOf(f.Type, request)
			if options != "omitempty" {
				*required = append(*required, name)
			}
		}
	}
}

// routeSchema returns the schema of POST /v1/route: one for each method, with its fields.
func routeSchema() object {
	t := reflect.TypeFor[routeRequest]()
	methods := strings.Fields(t.Field(0).Tag.Get("in"))
	needed := map[string][]any{"add_request": {"worker"}, "record_routing_decision": {"worker"}, "register_workers": {"model", "worker_ids"}}
	all := []any{}
	for _, method := range methods {
		properties := object{}
		required := append([]any{"method"}, needed[method]...)
		for i := range t.NumField() {
			f := t.Field(i)
			name := f.Tag.Get("json")
			if !slices.Contains(strings.Fields(f.Tag.Get("in")), method) {
				continue
			}
			properties[name] = schemaOf(f.Type, true)
			if name == "tokens" {
				required = append(required, name)
			}
		}
		properties["method"] = object{"const": method}
		all = append(all, object{"title": method, "type": "object", "properties": properties, "required": required, "additionalProperties": false})
	}
	return object{"oneOf": all}
}

// schema returns the schema of a body or an answer of the table.
func schema(v any, request bool) object {
	switch v.(type) {
	case routeBody:
		return routeSchema()
	case routeAnswers:
		all := []any{}
		for _, a := range []any{routeAnswer{}, markAnswer{}, loadsAnswer{}, overlapsAnswer{}, registeredAnswer{}} {
			all = append(all, schemaOf(reflect.TypeOf(a), false))
		}
		return object{"oneOf": all}
	}
	return schemaOf(reflect.TypeOf(v), request)
}

// decoded returns a JSON value with its numbers as json.Number.
func decoded(t *testing.T, text string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%.100s: %v", text, err)
	}
	return v
}

// fits reports why a value does not fit a schema, by the keywords that schemaOf writes.
func fits(s object, v any) error {
	if all, ok := s["oneOf"].([]any); ok {
		n := 0
		var failures []string
		for _, one := range all {
			if err := fits(one.(object), v); err == nil {
				n++
			} else {
				failures = append(failures, err.Error())
			}
		}
		if n != 1 {
			return fmt.Errorf("%d schemas fit: %s", n, strings.Join(failures, "; "))
		}
		return nil
	}
	if c, ok := s["const"]; ok {
		if c != v {
			return fmt.Errorf("%v is not %v", v, c)
		}
		return nil
	}
	kinds, ok := s["type"].([]any)
	if kind, one := s["type"].(string); one {
		kinds, ok = []any{kind}, true
	}
	if kind := kindOf(v); ok && !slices.Contains(kinds, any(kind)) && !(kind == "integer" && slices.Contains(kinds, any("number"))) {
		return fmt.Errorf("%.40v is %s, want %v", v, kind, kinds)
	}
	switch v := v.(type) {
	case json.Number:
		if f, err := v.Float64(); err != nil || s["minimum"] != nil && f < 0 || s["maximum"] != nil && f > math.MaxUint32 {
			return fmt.Errorf("%v is out of range", v)
		}
	case []any:
		for i, e := range v {
			if items, ok := s["items"].(object); ok {
				if err := fits(items, e); err != nil {
					return fmt.Errorf("[%d]: %w", i, err)
				}
			}
		}
	case object:
		return fitsObject(s, v)
	}
	return nil
}

func fitsObject(s, v object) error {
	required, _ := s["required"].([]any)
	for _, name := range required {
		if _, ok := v[name.(string)]; !ok {
			return fmt.Errorf("%s is missing", name)
		}
	}
	properties, _ := s["properties"].(object)
	for name, e := range v {
		p, ok := properties[name].(object)
		if !ok {
			if p, ok = s["additionalProperties"].(object); !ok && s["additionalProperties"] == false {
				return fmt.Errorf("%s is unknown", name)
			}
		}
		if err := fits(p, e); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// kindOf returns the JSON type of a value.
func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return "number"
		}
		return "integer"
	}
	return "object"
}
