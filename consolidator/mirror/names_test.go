package mirror

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/consolidator/checkpoint"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// rootStore is the payload of an engine that stores one block of four tokens at the
// start of a sequence; more are further fields of its event.
func rootStore(t *testing.T, hash uint64, more map[string]any) []byte {
	t.Helper()
	event := map[string]any{
		"type": "BlockStored", "block_hashes": []any{hash}, "parent_block_hash": nil,
		"token_ids": []any{9, 9, 9, 9}, "block_size": 4, "medium": "GPU",
	}
	for key, value := range more {
		event[key] = value
	}
	payload, err := msgp.AppendIntf(nil, []any{1.5, []any{event}, 0})
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// consume applies payloads as a rank does.
func consume(t *testing.T, c *Cache, payloads ...[]byte) {
	t.Helper()
	var d engineevent.Decoder
	var b engineevent.Batch
	for _, payload := range payloads {
		if err := d.Decode(payload, &b); err != nil || len(b.Bad) > 0 {
			t.Fatal(err, b.Bad)
		}
		c.Apply(&b)
	}
	c.stream.Flush()
}

// TestOtherContentIsNeverPublishedAsPlainText: two prompts with the same tokens are
// two blocks when the engine tells them apart, and neither is the plain prompt.
func TestOtherContentIsNeverPublishedAsPlainText(t *testing.T) {
	digest := strings.Repeat("0123456789abcdef", 4)
	for name, keys := range map[string][2]any{
		"a user's identifiers":  {[]any{"cat", 0}, []any{"dog", 0}},
		"an adapter's":          {[]any{"ad:" + digest, 0}, []any{"ad:f" + digest[1:], 0}},
		"SHA-512":               {[]any{digest + digest, 0}, []any{digest + "f" + digest[1:], 0}},
		"prompt embeddings":     {[]byte("one digest"), []byte("another digest")},
		"a kind of the future":  {[]any{"mm", "cat", 0}, []any{"mm", "dog", 0}},
		"a salt, an identifier": {digest, []any{digest, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			rec := residencytest.NewRecorder(t)
			c := newCache(residency.NewStream(testOwner, rec), 4, 16)
			consume(t, c,
				rootStore(t, 1, map[string]any{"extra_keys": []any{[]any{keys[0]}}}),
				rootStore(t, 2, map[string]any{"extra_keys": []any{[]any{keys[1]}}}))
			var h kv.Hasher
			plain := residencytest.Pair{Tier: kv.TierDevice, Hash: kv.SequenceHash(h.Local([]uint32{9, 9, 9, 9}, kv.LocalSeed("", ""), nil))}
			held := rec.Resident()
			if _, ok := held[plain]; ok || len(held) != 2 {
				t.Errorf("published %v; want two blocks, none of them %x", held, plain.Hash)
			}
			if st := c.stream.Status(); st.Health != kvevent.HealthExact {
				t.Errorf("health %s, dropped %v", st.Health, c.count.Dropped())
			}
		})
	}
}

// TestBlocksHaveTheNamesThatRoutersAskFor: a router computes the same name from what
// its client says.
func TestBlocksHaveTheNamesThatRoutersAskFor(t *testing.T) {
	digest := strings.Repeat("0123456789abcdef", 4)
	long := strings.Repeat("tenant", 1000)
	for name, tc := range map[string]struct {
		more       map[string]any
		lora, salt string
		objects    []uint64
	}{
		"salt of 64 hex digits": {map[string]any{"extra_keys": []any{[]any{digest}}}, "", digest, nil},
		"long salt":             {map[string]any{"extra_keys": []any{[]any{long}}}, "", long, nil},
		"long salt in its key":  {map[string]any{"cache_salt": long}, "", long, nil},
		"long adapter":          {map[string]any{"lora_name": long, "extra_keys": []any{[]any{long}}}, long, "", nil},
		"an adapter's image": {
			map[string]any{"lora_name": "ad", "extra_keys": []any{[]any{"ad", []any{"ad:" + digest, 0}, "tenant"}}},
			"ad", "tenant", []uint64{0x0123456789abcdef},
		},
		"an image behind the block": {
			map[string]any{"extra_keys": []any{[]any{[]any{digest, 4}}}, "lookahead_token_ids": []any{[]any{7}}}, "", "", nil,
		},
	} {
		rec := residencytest.NewRecorder(t)
		c := newCache(residency.NewStream(testOwner, rec), 4, 16)
		consume(t, c, rootStore(t, 1, tc.more))
		var h kv.Hasher
		want := kv.SequenceHash(h.Local([]uint32{9, 9, 9, 9}, kv.LocalSeed(tc.lora, tc.salt), tc.objects))
		if _, ok := rec.Resident()[residencytest.Pair{Tier: kv.TierDevice, Hash: want}]; !ok {
			t.Errorf("%s: %x is not among %v", name, want, rec.Resident())
		}
	}
}

// TestSaltsAreBounded: what a rank keeps for a salt does not grow with the salt, in
// memory and in the checkpoint.
func TestSaltsAreBounded(t *testing.T) {
	c := newCache(residency.NewStream(testOwner, nil), 4, 1<<20)
	const blocks = 8
	for i := range uint64(blocks) {
		salt := fmt.Sprint(i) + strings.Repeat("s", 1<<20)
		consume(t, c, rootStore(t, i+1, map[string]any{"extra_keys": []any{[]any{salt}}}))
	}
	const each = nameBytes + kv.MaxNameBytes + checkpoint.BlockBytes + checkpoint.EngineBlockBytes
	if c.names.bytes > blocks*each || c.known.Len() != blocks {
		t.Errorf("%d bytes of names for %d blocks", c.names.bytes, c.known.Len())
	}
	if file := c.AppendCheckpoint(nil, checkpoint.ID{}, sequence.State{}); len(file) > 1024+blocks*each {
		t.Errorf("a checkpoint of %d bytes", len(file))
	}
}

// TestNamesAreBoundedTogether: a salt for which there is no room costs its blocks and
// the stream's exactness. Known salts and blocks without one go on, and room that is
// given back is used again.
func TestNamesAreBoundedTogether(t *testing.T) {
	c := newCache(residency.NewStream(testOwner, nil), 4, 16)
	first := map[string]any{"cache_salt": "first"}
	consume(t, c, rootStore(t, 1, first))
	free := maxNameBytes - c.names.bytes
	c.names.bytes += free
	consume(t, c, rootStore(t, 2, map[string]any{"cache_salt": "second"}))
	if n := c.count.dropped[dropNamesFull].Load(); n != 1 || c.stream.Status().Health != kvevent.HealthDegraded {
		t.Errorf("dropped %v, health %s", c.count.Dropped(), c.stream.Status().Health)
	}
	consume(t, c, rootStore(t, 3, nil),
		rootStore(t, 4, map[string]any{"token_ids": []any{1, 2, 3, 4}, "cache_salt": "first"}),
		rootStore(t, 5, map[string]any{"token_ids": []any{5, 6, 7, 8}, "parent_block_hash": 1, "lora_name": "ad"}))
	if c.known.Len() != 4 {
		t.Errorf("%d blocks are known, want 4; dropped %v", c.known.Len(), c.count.Dropped())
	}
	c.names.bytes -= free
	c.Apply(&engineevent.Batch{Events: []engineevent.Event{{Kind: kvevent.Cleared}}})
	if c.names.bytes != 0 {
		t.Errorf("%d bytes of names without a block", c.names.bytes)
	}
}
