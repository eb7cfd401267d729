package modes_test

import (
	"context"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/modes"
)

// Four requests go to the two workers by turns, because each one that is booked counts.
func ExampleLeastLoaded() {
	members := &index.Members{List: []index.Member{{Worker: kv.Worker{ID: 1}}, {Worker: kv.Worker{ID: 2}}}}
	c := schedule.DefaultConfig()
	c.Tie = schedule.TieFirst
	s, err := schedule.New(schedule.Options{
		Config: c, Selector: modes.NewLeastLoaded(1), Members: func() *index.Members { return members },
	})
	if err != nil {
		panic(err)
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		r, err := s.Schedule(context.Background(), &schedule.Request{ID: id, Book: true, Tokens: 100, BlockSize: 16})
		if err != nil {
			panic(err)
		}
		fmt.Println(id, r.Worker)
	}
	// Output:
	// a 1/0
	// b 2/0
	// c 1/0
	// d 2/0
}
