package engineevent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestExtraKeysAllNameTheBlock: whatever an engine hashed besides the tokens is the
// salt, or the adapter, or one of the block's objects. Nothing is left out.
func TestExtraKeysAllNameTheBlock(t *testing.T) {
	id := func(first byte) string { return fmt.Sprintf("%02x", first) + strings.Repeat("0", 62) }
	const hash1, hash2 = 0x01 << 56, 0x02 << 56
	xxh := func(content string) uint64 { return xxh3.HashStringSeed(content, kv.HashSeed) }
	long := strings.Repeat("s", kv.MaxNameBytes+1)
	for name, tc := range map[string]struct {
		fields  dict
		salt    string
		mm      [][]uint64
		unknown int
	}{
		"nil":                        {dict{"extra_keys", nil}, "", nil, 0},
		"nil per block":              {dict{"extra_keys", list{nil, nil}}, "", nil, 0},
		"plain salt":                 {dict{"extra_keys", list{list{"tenant"}, nil}}, "tenant", nil, 0},
		"salt like an identifier":    {dict{"extra_keys", list{list{id(1)}, nil}}, id(1), nil, 0},
		"long salt":                  {dict{"extra_keys", list{list{long}, nil}}, kv.BoundedName(long), nil, 0},
		"long explicit salt":         {dict{"cache_salt", long}, kv.BoundedName(long), nil, 0},
		"prefixed salt":              {dict{"extra_keys", list{list{"dynamo-cache-salt:tenant"}, nil}}, "tenant", nil, 0},
		"second block":               {dict{"extra_keys", list{nil, list{"cat"}}}, "", [][]uint64{nil, {xxh("cat")}}, 0},
		"inside a sequence":          {dict{"parent_block_hash", 5, "extra_keys", list{list{"cat"}}}, "", [][]uint64{{xxh("cat")}, nil}, 0},
		"prefixed in a sequence":     {dict{"parent_block_hash", 5, "extra_keys", list{list{"dynamo-cache-salt:t"}}}, "t", nil, 0},
		"adapter":                    {dict{"lora_name", "ad", "extra_keys", list{list{"ad"}, list{"ad"}}}, "", nil, 0},
		"adapter named later":        {dict{"extra_keys", list{list{"ad", "tenant"}}, "lora_name", "ad"}, "tenant", nil, 0},
		"long adapter":               {dict{"lora_name", long, "extra_keys", list{list{long, "tenant"}}}, "tenant", nil, 0},
		"salt equal to the adapter":  {dict{"lora_name", "ad", "extra_keys", list{list{"ad", "ad"}}}, "ad", nil, 0},
		"explicit salt repeated":     {dict{"cache_salt", "mine", "extra_keys", list{list{"mine"}}}, "mine", nil, 0},
		"another than the explicit":  {dict{"cache_salt", "mine", "extra_keys", list{list{"cat"}}}, "mine", [][]uint64{{xxh("cat")}, nil}, 0},
		"first of two":               {dict{"extra_keys", list{list{"one", "two"}}}, "one", [][]uint64{{xxh("two")}, nil}, 0},
		"prompt embeddings":          {dict{"extra_keys", list{list{nil, "tenant", []byte("digest")}}}, "tenant", [][]uint64{{xxh("digest")}, nil}, 0},
		"empty salt":                 {dict{"cache_salt", "", "extra_keys", list{list{""}}}, "", nil, 0},
		"identifier":                 {dict{"extra_keys", list{nil, list{id(1)}}}, "", [][]uint64{nil, {hash1}}, 0},
		"identifier and offset":      {dict{"extra_keys", list{nil, list{list{id(1), 3}, list{id(2), -1}}}}, "", [][]uint64{nil, {hash1, hash2}}, 0},
		"all of them":                {dict{"lora_name", "ad", "extra_keys", list{list{"ad", list{id(2), 0}, "tenant"}, list{"ad", list{id(2), 3}}}}, "tenant", [][]uint64{{hash2}, {hash2}}, 0},
		"a user's identifier":        {dict{"extra_keys", list{list{list{"picture-1", 0}}}}, "", [][]uint64{{xxh("picture-1")}, nil}, 0},
		"SHA-512":                    {dict{"extra_keys", list{list{list{id(1) + id(2), 0}}}}, "", [][]uint64{{xxh(id(1) + id(2))}, nil}, 0},
		"an adapter's identifier":    {dict{"lora_name", "ad", "extra_keys", list{list{"ad", list{"ad:" + id(1), 0}}}}, "", [][]uint64{{hash1}, nil}, 0},
		"another adapter's":          {dict{"lora_name", "a", "extra_keys", list{list{"a", list{"ad:" + id(1), 0}}}}, "", [][]uint64{{xxh("ad:" + id(1))}, nil}, 0},
		"identifier without offset":  {dict{"extra_keys", list{list{list{id(1)}}}}, "", [][]uint64{{hash1}, nil}, 0},
		"object behind the block":    {dict{"extra_keys", list{list{list{id(1), 3}, list{id(2), 4}}}}, "", [][]uint64{{hash1}, nil}, 0},
		"kinds that are not known":   {dict{"extra_keys", list{list{3, list{}, list{1, 2}}, list{list{"mm", id(1), 0}}}}, "", [][]uint64{{xxh("\x03"), xxh("\x90"), xxh("\x92\x01\x02")}, {xxh("\x93\xa2mm\xd9\x40" + id(1) + "\x00")}}, 4},
		"more entries than blocks":   {dict{"extra_keys", list{nil, nil, list{list{id(1), 0}}}}, "", nil, 0},
		"infos":                      {dict{"block_mm_infos", list{nil, dict{"mm_objects", list{dict{"mm_hash", 8, "offsets", list{list{0, 4}}}, dict{"x", 1, "mm_hash", uint64(1) << 63}}}}}, "", [][]uint64{nil, {8, 1 << 63}}, 0},
		"infos win over identifiers": {dict{"extra_keys", list{list{list{id(1), 0}, "tenant"}}, "block_mm_infos", list{nil, dict{"x", 1, "mm_objects", list{dict{"mm_hash", 8}}}}}, "tenant", [][]uint64{nil, {8}}, 0},
		"empty infos":                {dict{"block_mm_infos", list{nil, dict{"mm_objects", nil}, dict{}}}, "", nil, 0},
	} {
		event := append(dict{"type", "BlockStored"}, tc.fields...)
		event = append(event, "block_hashes", list{1, 2}, "token_ids", list{1, 2, 3, 4, 5, 6, 7, 8}, "block_size", 4)
		b := decodeBatch(t, list{ts, list{event}, 0})
		if len(b.Events) != 1 {
			t.Errorf("%s: %d events, bad %v", name, len(b.Events), b.Bad)
			continue
		}
		if got := b.Events[0].Salt; got != tc.salt {
			t.Errorf("%s: salt %q, want %q", name, got, tc.salt)
		}
		if diff := cmp.Diff(tc.mm, b.Events[0].Multimodal, visible); diff != "" {
			t.Errorf("%s: objects (-want +got)\n%s", name, diff)
		}
		if b.UnknownKeys != tc.unknown {
			t.Errorf("%s: %d unknown keys, want %d", name, b.UnknownKeys, tc.unknown)
		}
	}
}

func TestObjectHashIsTheFirstSixteenOfSixtyFourHexDigits(t *testing.T) {
	const digits = "0123456789abcdef00112233445566778899aabbccddeeff0011223344556677"
	for _, id := range []string{digits, strings.ToUpper(digits)} {
		if got := ObjectHash(id); got != 0x0123456789abcdef {
			t.Errorf("%q: got %#x", id, got)
		}
	}
	for _, id := range []string{digits[:63], digits + "0", digits[:63] + "g", "123", "not_a_hash", ""} {
		if got, want := ObjectHash(id), xxh3.HashStringSeed(id, kv.HashSeed); got != want {
			t.Errorf("%q: got %#x, want %#x", id, got, want)
		}
	}
}
