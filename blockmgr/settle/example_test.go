package settle_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr/settle"
)

func Example() {
	left := 3
	loop := settle.New(func() (done bool) {
		left--
		fmt.Println(left, "left")
		return left == 0
	}, func() { fmt.Println("gives up") })
	defer loop.Close()
	<-loop.Begin()
	// Output:
	// 2 left
	// 1 left
	// 0 left
}
