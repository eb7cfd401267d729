package admission_test

import (
	"context"
	"fmt"

	"github.com/blockyard-ai/blockyard/router/frontend/admission"
)

func Example() {
	queue, err := admission.New(admission.Limits{Running: 1})
	if err != nil {
		panic(err)
	}
	release, err := queue.Enter(context.Background(), admission.Request{Tenant: "a", Tokens: 900})
	if err != nil {
		panic(err)
	}
	ctx, leave := context.WithCancel(context.Background())
	leave()
	_, err = queue.Enter(ctx, admission.Request{Tenant: "b", Tokens: 100})
	fmt.Println(err)
	release()
	fmt.Println(queue.Stats().Running)
	// Output:
	// context canceled
	// 0
}
