package kv_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestStoredIdentitiesAreFrozen reads testdata/blockkey.txt, which says where
// its numbers come from.
func TestStoredIdentitiesAreFrozen(t *testing.T) {
	f, err := os.Open("testdata/blockkey.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	checks := map[string]func([]string) (got, want string, err error){
		"namespace": checkNamespace, "root": checkRoot, "block": checkBlock, "stored": checkStored,
	}
	counts := map[string]int{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		check, ok := checks[fields[0]]
		if !ok {
			t.Fatalf("line %d: vector of kind %q", n, fields[0])
		}
		got, want, err := check(fields[1:])
		if err != nil {
			t.Fatalf("line %d: %v", n, err)
		}
		if got != want {
			t.Errorf("line %d: got %s, want %s", n, got, want)
		}
		counts[fields[0]]++
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for kind := range checks {
		if counts[kind] == 0 {
			t.Errorf("no vector of kind %s", kind)
		}
	}
}

func checkNamespace(f []string) (got, want string, err error) {
	var ns kv.Namespace
	texts := []*string{&ns.Model, &ns.Weights, &ns.DType, &ns.Layout, &ns.KVFormat}
	numbers := []*uint32{&ns.Layers, &ns.OuterDim, &ns.BlockSize, &ns.InnerDim, &ns.DTypeBytes, &ns.TP, &ns.PP, &ns.DCP}
	for _, field := range f[1:] {
		if len(numbers) == 0 && len(texts) == 0 {
			g, err := parseGroup(field)
			if err != nil {
				return "", "", err
			}
			ns.Groups = append(ns.Groups, g)
			continue
		}
		if strings.HasPrefix(field, `"`) {
			if *texts[0], err = strconv.Unquote(field); err != nil {
				return "", "", err
			}
			texts = texts[1:]
			continue
		}
		if *numbers[0], err = parseUint32(field); err != nil {
			return "", "", err
		}
		numbers = numbers[1:]
	}
	return ns.ID().String(), f[0], nil
}

// parseGroup reads kind:window:block_size:block_bytes:layers:eagle.
func parseGroup(s string) (g kv.Group, err error) {
	parts := strings.Split(s, ":")
	if len(parts) != 6 {
		return g, fmt.Errorf("group %q: want kind:window:block_size:block_bytes:layers:eagle", s)
	}
	g.Kind = parts[0]
	for i, to := range map[int]*uint32{1: &g.Window, 2: &g.BlockSize, 4: &g.Layers} {
		if *to, err = parseUint32(parts[i]); err != nil {
			return g, err
		}
	}
	if g.BlockBytes, err = strconv.ParseUint(parts[3], 10, 64); err != nil {
		return g, err
	}
	g.Eagle, err = strconv.ParseBool(parts[5])
	return g, err
}

func checkRoot(f []string) (got, want string, err error) {
	ns, err := kv.ParseNamespaceID(f[1])
	if err != nil {
		return "", "", err
	}
	lora, err := strconv.Unquote(f[2])
	if err != nil {
		return "", "", err
	}
	salt, err := strconv.Unquote(f[3])
	return kv.NewKeyer().Root(ns, lora, salt).String(), f[0], err
}

func checkBlock(f []string) (got, want string, err error) {
	parent, err := kv.ParseBlockKey(f[1])
	if err != nil {
		return "", "", err
	}
	var tokens []uint32
	for s := range strings.SplitSeq(f[2], ",") {
		token, err := parseUint32(s)
		if err != nil {
			return "", "", err
		}
		tokens = append(tokens, token)
	}
	var extras []kv.Extra
	for _, s := range f[3:] {
		e, err := parseExtra(s)
		if err != nil {
			return "", "", err
		}
		extras = append(extras, e)
	}
	return kv.NewKeyer().Next(parent, tokens, extras).String(), f[0], nil
}

// parseExtra reads kind:offset:data.
func parseExtra(s string) (kv.Extra, error) {
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return kv.Extra{}, fmt.Errorf("extra %q: want kind:offset:data", s)
	}
	kind, err := parseUint32(parts[0])
	if err != nil {
		return kv.Extra{}, err
	}
	offset, err := parseUint32(parts[1])
	if err != nil {
		return kv.Extra{}, err
	}
	data, err := hex.DecodeString(parts[2])
	return kv.Extra{Kind: kv.ExtraKind(kind), Offset: offset, Data: data}, err
}

func checkStored(f []string) (got, want string, err error) {
	block, err := kv.ParseBlockKey(f[1])
	if err != nil {
		return "", "", err
	}
	group, err := parseUint32(f[2])
	if err != nil {
		return "", "", err
	}
	key := block.InGroup(group)
	if key.Block() != block || key.Group() != group || key.String() != f[1]+":"+f[2] {
		return "", "", fmt.Errorf("stored key %s does not give back its parts %s and %d", key, block, group)
	}
	return hex.EncodeToString(key[:]), f[0], nil
}

func parseUint32(s string) (uint32, error) {
	v, err := strconv.ParseUint(s, 10, 32)
	return uint32(v), err
}

func TestKeysOfDifferentInputsDiffer(t *testing.T) {
	k := kv.NewKeyer()
	parent := kv.BlockKey{1}
	picture := []kv.Extra{{Kind: kv.ExtraMultimodal, Data: []byte("a")}}
	keys := map[kv.BlockKey]string{}
	add := func(name string, key kv.BlockKey) {
		if other, ok := keys[key]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		keys[key] = name
	}
	add("text", k.Next(parent, []uint32{1, 2}, nil))
	add("another parent", k.Next(kv.BlockKey{2}, []uint32{1, 2}, nil))
	add("another order", k.Next(parent, []uint32{2, 1}, nil))
	add("a picture", k.Next(parent, []uint32{1, 2}, picture))
	add("a picture later", k.Next(parent, []uint32{1, 2}, []kv.Extra{{Kind: kv.ExtraMultimodal, Offset: 1, Data: []byte("a")}}))
	add("prompt embeds", k.Next(parent, []uint32{1, 2}, []kv.Extra{{Kind: kv.ExtraPromptEmbeds, Data: []byte("a")}}))
	add("the picture twice", k.Next(parent, []uint32{1, 2}, append(picture, picture...)))
	add("an empty picture", k.Next(parent, []uint32{1, 2}, []kv.Extra{{Kind: kv.ExtraMultimodal}}))
	add("root", k.Root(kv.NamespaceID{}, "", ""))
	add("root with LoRA", k.Root(kv.NamespaceID{}, "a", ""))
	add("root with salt", k.Root(kv.NamespaceID{}, "", "a"))
	add("root with both", k.Root(kv.NamespaceID{}, "a", "a"))
	add("root with a longer LoRA", k.Root(kv.NamespaceID{}, "aa", ""))
}

func TestKeyTextIsReadBack(t *testing.T) {
	key := kv.BlockKey{0xde, 0xad, 15: 0x01}
	if got, err := kv.ParseBlockKey(key.String()); err != nil || got != key {
		t.Errorf("got %s, %v", got, err)
	}
	id := kv.NamespaceID(key)
	if got, err := kv.ParseNamespaceID(id.String()); err != nil || got != id {
		t.Errorf("got %s, %v", got, err)
	}
	for _, bad := range []string{"", "dead", strings.Repeat("0", 31), strings.Repeat("0", 33), strings.Repeat("g", 32)} {
		if _, err := kv.ParseBlockKey(bad); err == nil {
			t.Errorf("block key %q: no error", bad)
		}
		if _, err := kv.ParseNamespaceID(bad); err == nil {
			t.Errorf("namespace %q: no error", bad)
		}
	}
}

func TestHashingAllocatesNothing(t *testing.T) {
	tokens := upTo(64)
	extras := []kv.Extra{{Kind: kv.ExtraMultimodal, Offset: 3, Data: make([]byte, 64)}}
	objects := []uint64{9, 3, 7}
	k, key := kv.NewKeyer(), kv.BlockKey{}
	var h kv.Hasher
	locals, sequence := make([]kv.LocalHash, 0, 4), make([]kv.SequenceHash, 0, 4)
	for name, f := range map[string]func(){
		"Keyer.Next":               func() { key = k.Next(key, tokens, nil) },
		"Keyer.Next with extras":   func() { key = k.Next(key, tokens, extras) },
		"Keyer.Root":               func() { key = k.Root(kv.NamespaceID{}, "adapter-a", "tenant-a") },
		"Hasher.Local":             func() { h.Local(tokens, kv.HashSeed, nil) },
		"Hasher.Local with images": func() { h.Local(tokens, kv.HashSeed, objects) },
		"LocalSeed":                func() { kv.LocalSeed("adapter-a", "tenant-a") },
		"a chain": func() {
			locals = h.AppendLocals(locals[:0], tokens, 16, kv.HashSeed)
			sequence = kv.AppendSequence(sequence[:0], locals)
		},
	} {
		f() // buffers grow once
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkBlockKey(b *testing.B) {
	k, key, tokens := kv.NewKeyer(), kv.BlockKey{}, upTo(16)
	b.ReportAllocs()
	for b.Loop() {
		key = k.Next(key, tokens, nil)
	}
}

func BenchmarkLocalHash(b *testing.B) {
	var h kv.Hasher
	tokens := upTo(16)
	b.ReportAllocs()
	for b.Loop() {
		h.Local(tokens, kv.HashSeed, nil)
	}
}
