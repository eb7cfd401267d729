// Package split divides the blocks of a cluster among the indexes of several routers, by the first blocks of their sequences:
// docs/fleet.md says what for.
//
//	s := split.New(4, 32)
//	s.Split(&event, func(router int, part *kvevent.RouterEvent) { err = indexes[router].Apply(part) })
//	indexes[s.Ask(prompt)].Match(&m, prompt, index.Continuation)
//
// The index of the router that Ask names has every block that can serve the prompt. Blocks with fewer blocks before them than the
// first ones are in all indexes. Routers as they are read all events; only simulations split them.
package split
