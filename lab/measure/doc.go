// Package measure reads the resources that this process uses, for the benchmarks and
// soaks.
//
//	before := measure.CPUSeconds()
//	work()
//	fmt.Println(measure.CPUSeconds() - before)
//
// Every function may be called from any goroutine.
package measure
