package kv_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

func llama() kv.Namespace {
	return kv.Namespace{
		Model: "llama", Weights: "f3a9", DType: "bfloat16", Layers: 32, OuterDim: 2, BlockSize: 16, InnerDim: 1024, DTypeBytes: 2,
		Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "v1",
	}
}

// gemma has a group of windows before the group of full attention.
func gemma() kv.Namespace {
	ns := llama()
	ns.Groups = []kv.Group{
		{Kind: "sliding", Window: 1024, BlockSize: 32, BlockBytes: 5 << 16, Layers: 40, Eagle: true},
		{Kind: "full", BlockSize: 16, BlockBytes: 1 << 16, Layers: 8},
	}
	return ns
}

func TestEveryFieldOfAGroupCountsForTheNamespaceID(t *testing.T) {
	ns, swapped := gemma(), gemma()
	slices.Reverse(swapped.Groups)
	ids := map[kv.NamespaceID]string{ns.ID(): "the original", swapped.ID(): "the order"}
	if len(ids) != 2 {
		t.Error("the id does not depend on the order of the groups")
	}
	for i := range reflect.TypeFor[kv.Group]().NumField() {
		changed := gemma()
		switch f := reflect.ValueOf(&changed.Groups[1]).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		case reflect.Bool:
			f.SetBool(!f.Bool())
		default:
			f.SetUint(f.Uint() + 1)
		}
		name := reflect.TypeFor[kv.Group]().Field(i).Name
		if other, ok := ids[changed.ID()]; ok {
			t.Errorf("a change of %s gives the id of %s", name, other)
		}
		ids[changed.ID()] = name
	}
	ns.Groups = []kv.Group{}
	if without := llama(); ns.ID() != without.ID() {
		t.Error("an empty list of groups changes the id")
	}
}

func TestNamespaceWithGroupsValidates(t *testing.T) {
	ns := gemma()
	if err := ns.Validate(); err != nil || ns.BlockBytes() != 5<<16 {
		t.Fatalf("block of %d bytes, %v", ns.BlockBytes(), err)
	}
	ns.InnerDim = 1 << 24 // descriptive: the groups say how large a block is
	if err := ns.Validate(); err != nil {
		t.Error(err)
	}
	if got, want := ns.KVGroups(), (kvgroup.Groups{
		{Kind: kvgroup.Sliding, Window: 1024, BlockSize: 32, Eagle: true}, {Kind: kvgroup.Full, BlockSize: 16},
	}); !slices.Equal(got, want) {
		t.Errorf("groups %+v, want %+v", got, want)
	}
	for field, change := range map[string]func(*kv.Group){
		"groups[0] kind":   func(g *kv.Group) { g.Kind = "linear" },
		"groups[0] window": func(g *kv.Group) { g.Window = 0 }, "groups[0] block_size": func(g *kv.Group) { g.BlockSize = 40 },
		"groups[0] block_bytes": func(g *kv.Group) { g.BlockBytes = 256<<20 + 1 }, "groups[0] layers": func(g *kv.Group) { g.Layers = 4097 },
	} {
		ns := gemma()
		change(&ns.Groups[0])
		if err := ns.Validate(); err == nil || !strings.HasPrefix(err.Error(), "namespace "+field+":") {
			t.Errorf("%s: got %v", field, err)
		}
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
		case reflect.Slice:
			f.Set(reflect.ValueOf(gemma().Groups))
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
	for name, want := range map[string]kv.Namespace{"without groups": llama(), "with groups": gemma()} {
		b, err := want.MarshalMsg(nil)
		if err != nil {
			t.Fatal(err)
		}
		var got kv.Namespace
		if rest, err := got.UnmarshalMsg(b); err != nil || len(rest) != 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %d bytes left, %v", name, got, len(rest), err)
		}
		for n := range b {
			if _, err := new(kv.Namespace).UnmarshalMsg(b[:n]); err == nil {
				t.Errorf("%s: no error for the first %d bytes of %d", name, n, len(b))
			}
		}
	}
	many := gemma()
	many.Groups = slices.Repeat(many.Groups, kvgroup.MaxGroups/2+1)
	b, err := many.MarshalMsg(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := new(kv.Namespace).UnmarshalMsg(b); err == nil {
		t.Errorf("no error for %d groups", len(many.Groups))
	}
	var zero, one kv.Namespace
	one.DCP = 1
	if !zero.IsZero() || one.IsZero() {
		t.Errorf("zero: %t of nothing, %t of one field", zero.IsZero(), one.IsZero())
	}
}
