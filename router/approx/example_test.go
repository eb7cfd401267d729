package approx_test

import (
	"fmt"
	"log"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/index"
)

// A prompt that was sent to a worker is expected there until the TTL has passed.
func Example() {
	now := time.Unix(0, 0)
	a, err := approx.New(approx.Options{TTL: 2 * time.Minute, Now: func() time.Time { return now }})
	check(err)
	defer a.Close()
	worker := kv.Worker{ID: 7}
	check(a.SetMember(worker, 0, true))

	var hasher kv.Hasher
	locals := hasher.AppendLocals(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, 4, kv.HashSeed)
	check(a.Record(worker, locals, kv.AppendSequence(nil, locals)))
	var predicted index.Matches
	check(a.Match(&predicted, locals))
	fmt.Println("expected blocks:", predicted.Hits[0].Hits.Total())

	now = now.Add(3 * time.Minute)
	fmt.Println("expired:", a.Tick())
	check(a.Match(&predicted, locals))
	fmt.Println("workers with hits:", len(predicted.Hits))
	// Output:
	// expected blocks: 2
	// expired: 2
	// workers with hits: 0
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
