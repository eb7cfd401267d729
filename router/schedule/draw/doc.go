// Package draw chooses one of several costs: the lowest, or one at random by a softmax.
//
//	i := draw.Lowest(costs, random) // a lowest cost, a random one of several
//	d := draw.NewSoftmax(costs, temperature)
//	i = d.Draw(random)
//
// Costs are finite and at least one. Results are positions in costs. The same source of
// random numbers repeats the choices. Nothing here allocates.
package draw
