package kv_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func llama() kv.Namespace {
	return kv.Namespace{
		Model: "llama", Weights: "f3a9", DType: "bfloat16", Layers: 32, OuterDim: 2, BlockSize: 16, InnerDim: 1024, DTypeBytes: 2,
		Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "v1",
	}
}

func TestEveryNamespaceFieldCountsForItsID(t *testing.T) {
	ns := llama()
	ids := map[kv.NamespaceID]string{ns.ID(): "the original"}
	for i := range reflect.TypeFor[kv.Namespace]().NumField() {
		changed := llama()
		switch f := reflect.ValueOf(&changed).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		default:
			f.SetUint(f.Uint() + 1)
		}
		name := reflect.TypeFor[kv.Namespace]().Field(i).Name
		if other, ok := ids[changed.ID()]; ok {
			t.Errorf("a change of %s gives the id of %s", name, other)
		}
		ids[changed.ID()] = name
	}
	// Text that moves from one field to the next changes the id too.
	moved := llama()
	moved.Model, moved.Weights = "llamaf", "3a9"
	if _, ok := ids[moved.ID()]; ok {
		t.Error("the id does not depend on where one field ends")
	}
}

func TestNamespaceValidateNamesTheBadField(t *testing.T) {
	ns := llama()
	if err := ns.Validate(); err != nil {
		t.Fatal(err)
	}
	if got := ns.BlockBytes(); got != 32*2*16*1024*2 {
		t.Errorf("block of %d bytes", got)
	}
	for field, change := range map[string]func(*kv.Namespace){
		"model": func(n *kv.Namespace) { n.Model = "" }, "num_layers": func(n *kv.Namespace) { n.Layers = 0 },
		"outer_dim": func(n *kv.Namespace) { n.OuterDim = 3 }, "page_size": func(n *kv.Namespace) { n.BlockSize = 4097 },
		"inner_dim": func(n *kv.Namespace) { n.InnerDim = 1<<24 + 1 }, "dtype_width_bytes": func(n *kv.Namespace) { n.DTypeBytes = 9 },
		"tp": func(n *kv.Namespace) { n.TP = 0 }, "pp": func(n *kv.Namespace) { n.PP = 1025 }, "dcp": func(n *kv.Namespace) { n.DCP = 0 },
		"geometry": func(n *kv.Namespace) { n.Layers, n.InnerDim = 4096, 1<<24 },
	} {
		ns := llama()
		change(&ns)
		if err := ns.Validate(); err == nil || !strings.HasPrefix(err.Error(), "namespace "+field+":") {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

func TestLargestValidGeometryDoesNotOverflow(t *testing.T) {
	ns := llama()
	ns.Layers, ns.OuterDim, ns.BlockSize, ns.InnerDim, ns.DTypeBytes = 4096, 2, 4096, 1<<24, 8
	if got := ns.BlockBytes(); got != 1<<(12+1+12+24+3) {
		t.Errorf("got %d", got)
	}
}

func TestNamespaceSurvivesItsWireForm(t *testing.T) {
	want := llama()
	b, err := want.MarshalMsg(nil)
	if err != nil {
		t.Fatal(err)
	}
	var got kv.Namespace
	if rest, err := got.UnmarshalMsg(b); err != nil || len(rest) != 0 || got != want {
		t.Errorf("got %+v, %d bytes left, %v", got, len(rest), err)
	}
	for n := range b {
		if _, err := new(kv.Namespace).UnmarshalMsg(b[:n]); err == nil {
			t.Errorf("no error for the first %d bytes of %d", n, len(b))
		}
	}
}
