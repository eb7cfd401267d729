// Package partition divides the blocks of a cluster among the indexes of several routers, by the first blocks of their sequences:
// docs/fleet.md says what for.
//
//	p := partition.New(4, 32)
//	p.Split(&event, func(router int, part *kvevent.RouterEvent) { err = indexes[router].Apply(part) })
//	indexes[p.Ask(prompt)].Match(&m, prompt, index.Continuation)
//
// The index of the router that Ask names has every block that can serve the prompt. Blocks with fewer blocks before them than the
// first ones are in all indexes. Routers as they are read all events; only simulations split them.
package partition
