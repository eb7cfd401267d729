package sealed_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func Example() {
	dir, err := os.MkdirTemp("", "arena")
	check(err)
	defer os.RemoveAll(dir)
	key, err := sealed.ParseKey(bytes.Repeat([]byte{1}, sealed.KeyBytes), "an example")
	check(err)
	arena, err := sealed.Open(dir, key)
	check(err)
	cipher, err := arena.Extent(kv.NamespaceID{1}, 42)
	check(err)

	slot, life := bytes.Repeat([]byte("block"), 1000)[:extent.PageSize], extent.Life{Generation: 7}
	text := make([]byte, len(slot)+extent.SealBytes)
	cipher.Seal(text, slot, 3, life)
	again := make([]byte, len(slot))
	check(cipher.Open(again, text, 3, life))
	fmt.Println(bytes.Equal(again, slot), bytes.Contains(text, []byte("block")))
	fmt.Println(errors.Is(cipher.Open(again, text, 4, life), extent.ErrForged)) // swapped
	// Output:
	// true false
	// true
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
