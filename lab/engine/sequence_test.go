package engine

import (
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// tokenRun returns n tokens that start at from.
func tokenRun(from, n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = uint32(from + i)
	}
	return t
}

func TestSequenceHashesAreThoseOfTheWholeHouse(t *testing.T) {
	n := naming{namespace: kv.NamespaceID{7}, blockSize: 4}
	s := newSequence(n, tokenRun(0, 10))
	var h kv.Hasher
	want := kv.AppendSequence(nil, h.AppendLocals(nil, tokenRun(0, 10), 4, kv.LocalSeed("", "")))
	k := kv.NewKeyer()
	key := k.Root(n.namespace, "", "")
	for i, id := range s.ids {
		key = k.Next(key, tokenRun(0, 10)[4*i:4*i+4], nil)
		if id.seq != want[i] || id.key != key {
			t.Errorf("block %d: seq %x key %s, want %x %s", i, id.seq, id.key, want[i], key)
		}
	}
	if len(s.ids) != 2 {
		t.Errorf("%d blocks named, want the 2 full ones", len(s.ids))
	}
}

func TestSequencePushNamesBlocksAsIfTheyHadBeenThePrompt(t *testing.T) {
	n := naming{blockSize: 4}
	whole := newSequence(n, tokenRun(0, 23))
	grown := newSequence(n, slices.Clone(tokenRun(0, 1)))
	for _, token := range tokenRun(1, 22) {
		grown.push(token)
	}
	if !slices.Equal(whole.ids, grown.ids) || whole.prefixHash() != grown.prefixHash() {
		t.Errorf("grown: %v, whole: %v", grown.ids, whole.ids)
	}
}
