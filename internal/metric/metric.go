package metric

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Kind says how a number behaves over time.
type Kind uint8

const (
	// Counter never falls while the process lives. Sums keep the counters of parts that ended.
	Counter Kind = iota
	// Gauge describes the present. Sums drop the gauges of parts that ended.
	Gauge
)

// String returns "counter" or "gauge".
func (k Kind) String() string {
	if k == Counter {
		return "counter"
	}
	return "gauge"
}

// Field is one declared number of a snapshot struct.
type Field struct {
	// Name is the value of the "metric" tag, or else of the "json" tag. Lower case with underscores.
	Name string
	// Help is the value of the "help" tag: one sentence for operators. It may be empty.
	Help string
	Kind Kind
	// path leads from the snapshot to the field.
	path []int
}

// Each calls visit for every declared number of s, in the order of declaration.
// A true boolean is 1. Each panics when T is no snapshot struct (see the package comment).
func Each[T any](s *T, visit func(f *Field, value float64)) {
	v := reflect.ValueOf(s).Elem()
	fields := fieldsOf(v.Type()).numbers
	for i := range fields {
		visit(&fields[i], number(v.FieldByIndex(fields[i].path)))
	}
}

// Fields returns the declared numbers of T, in the order of declaration.
func Fields[T any]() []Field { return slices.Clone(fieldsOf(reflect.TypeFor[T]()).numbers) }

// Add adds every number of from to the same number of to, hidden numbers included and
// hidden structs left out.
// A boolean of to becomes true when either is true. A map[string]uint64 is added key by
// key. A Durations is added like a counter. Floats are left alone: sums of rates mean nothing.
func Add[T any](to, from *T) { add(reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem(), true) }

// AddCounters adds the counters of from to those of to and leaves the gauges of to alone.
func AddCounters[T any](to, from *T) {
	add(reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem(), false)
}

// fields are the metrics of a snapshot type: its numbers and its histograms.
type fields struct{ numbers, histograms []Field }

// declared caches the fields of each snapshot type. The number of types is fixed at build time.
var declared sync.Map // reflect.Type -> *fields

// fieldsOf returns the metrics that the snapshot type t declares in its tags, from a cache after the
// first call. Two metrics of one name are a bug.
func fieldsOf(t reflect.Type) *fields {
	if known, ok := declared.Load(t); ok {
		return known.(*fields)
	}
	all := new(fields)
	all.add(t, nil)
	seen := make(map[string]bool)
	for _, f := range slices.Concat(all.numbers, all.histograms) {
		if seen[f.Name] {
			panic(fmt.Sprintf("BUG: %v declares the metric %q twice", t, f.Name))
		}
		seen[f.Name] = true
	}
	declared.Store(t, all)
	return all
}

// add adds the metrics of the exported fields of t, and of the structs in them. path leads from the
// snapshot type to t. The name is that of the tag metric, or else of the tag json. A uint64 is a
// counter unless the tag says gauge.
func (all *fields) add(t reflect.Type, path []int) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("metric")
		if !f.IsExported() || tag == "-" {
			continue
		}
		at := append(slices.Clone(path), i)
		if f.Type.Kind() == reflect.Struct && f.Type != durationsType {
			all.add(f.Type, at)
			continue
		}
		kind, ok := kindOf(f.Type)
		if !ok {
			continue
		}
		name, option, _ := strings.Cut(tag, ",")
		if name == "" {
			name, _, _ = strings.Cut(f.Tag.Get("json"), ",")
		}
		if name == "" {
			panic(fmt.Sprintf("BUG: %v.%s has neither a metric nor a json tag", t, f.Name))
		}
		switch option {
		case "gauge":
			kind = Gauge
		case "":
		default:
			panic(fmt.Sprintf("BUG: %v.%s: metric option %q, want gauge", t, f.Name, option))
		}
		one := Field{Name: name, Help: f.Tag.Get("help"), Kind: kind, path: at}
		if f.Type == durationsType {
			all.histograms = append(all.histograms, one)
		} else {
			all.numbers = append(all.numbers, one)
		}
	}
}

// kindOf returns the kind of numbers of type t, and of those in a Durations. It is false for other
// types.
func kindOf(t reflect.Type) (Kind, bool) {
	switch t.Kind() {
	case reflect.Uint64, reflect.Struct:
		return Counter, true
	case reflect.Int, reflect.Int64, reflect.Uint32, reflect.Bool, reflect.Float64:
		return Gauge, true
	default:
		return 0, false
	}
}

// number returns a field's value for Prometheus; true is 1.
func number(v reflect.Value) float64 {
	switch v.Kind() {
	case reflect.Uint64, reflect.Uint32:
		return float64(v.Uint())
	case reflect.Int, reflect.Int64:
		return float64(v.Int())
	case reflect.Bool:
		if v.Bool() {
			return 1
		}
		return 0
	default:
		return v.Float()
	}
}

// add adds the fields of the struct from to those of to: counters, and gauges too when gauges is
// true. Both have the same type. See Add and AddCounters.
func add(to, from reflect.Value, gauges bool) {
	for i := range to.NumField() {
		f := to.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		gauge := strings.HasSuffix(f.Tag.Get("metric"), ",gauge")
		a, b := to.Field(i), from.Field(i)
		if f.Type == durationsType {
			a.Addr().Interface().(*Durations).add(b.Addr().Interface().(*Durations))
			continue
		}
		switch a.Kind() {
		case reflect.Struct:
			if f.Tag.Get("metric") != "-" {
				add(a, b, gauges)
			}
		case reflect.Uint64:
			if gauges || !gauge {
				a.SetUint(a.Uint() + b.Uint())
			}
		case reflect.Uint32:
			if gauges {
				a.SetUint(a.Uint() + b.Uint())
			}
		case reflect.Int, reflect.Int64:
			if gauges {
				a.SetInt(a.Int() + b.Int())
			}
		case reflect.Bool:
			if gauges {
				a.SetBool(a.Bool() || b.Bool())
			}
		case reflect.Map:
			addMap(a, b)
		}
	}
}

// addMap adds each number of from to that of the same key in to, when both are a
// map[string]uint64, such as blocks by reason. Maps of other types stay as they are.
func addMap(to, from reflect.Value) {
	m, ok := from.Interface().(map[string]uint64)
	if !ok || len(m) == 0 {
		return
	}
	if to.IsNil() {
		to.Set(reflect.MakeMapWithSize(to.Type(), len(m)))
	}
	sum := to.Interface().(map[string]uint64)
	for k, n := range m {
		sum[k] += n
	}
}
