package sharedcache_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/sharedcache"
	"github.com/blockyard-ai/blockyard/router/sharedcache/sharedcachetest"
)

// A shared cache has the first two blocks of a prompt of three.
func Example() {
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	var hasher kv.Hasher
	hashes := kv.AppendSequence(nil, hasher.AppendLocals(nil, tokens, 4, kv.HashSeed))
	var service sharedcachetest.Server
	service.Store(hashes[:2]...)
	server := httptest.NewServer(&service)
	defer server.Close()

	client, err := sharedcache.NewClient(sharedcache.Options{URL: server.URL, Timeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	hits, err := client.CheckBlocks(context.Background(), tokens, 4, "")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("blocks:", hits.TotalHits(), "beyond the first:", hits.Beyond(1))
	// Output:
	// blocks: 2 beyond the first: 1
}
