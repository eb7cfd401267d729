package replica_test

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/replica"
)

// account is a scheduler that only counts.
type account struct{ *load.Account }

func (a account) WithAccount(f func(a *load.Account) (kv.Worker, bool)) { f(a.Account) }

// router returns a router's state and the account of its only model.
func router(name uint64) (*replica.State, account) {
	s, model := replica.NewState("c", name), replica.Model{Name: "m", BlockSize: 16}
	a, err := load.New(load.Options{Journal: s.Open(model)})
	if err != nil {
		panic(err)
	}
	s.Join(model, account{a})
	return s, account{a}
}

// A booking of one router is in the account of the other once, although its message comes twice.
func Example() {
	first, bookings := router(1)
	second, copies := router(2)
	now := time.Unix(1000, 0)
	if err := bookings.Add(&load.Request{ID: "r1", Worker: kv.Worker{ID: 7}, PrefillTokens: 900}); err != nil {
		fmt.Println(err)
	}
	for _, m := range first.Outgoing(nil, now) {
		fmt.Println(m.Subject)
		second.Receive(m.Data, now)
		second.Receive(m.Data, now)
	}
	for _, a := range copies.Active(nil) {
		fmt.Println(a.ID, a.Worker.ID, a.PrefillTokens, replica.Name(a.Router))
	}
	// Output:
	// blockyard.c.replica.active_sequences_events.0000000000000001
	// blockyard.c.replica.active_sequences_events.0000000000000001
	// r1 7 900 0000000000000001
}
