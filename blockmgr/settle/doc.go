// Package settle repeats a task in the background until the task has nothing left to do.
//
//	loop := settle.New(func() (done bool) { return giveBackWhatIsIdle() }, logThatSlotsStayInUse)
//	defer loop.Close()
//	settled := loop.Begin() // bounds have changed
//	<-settled
//	loop.Again()            // a slot is no longer in use
//
// # Guarantees
//
// One try runs at a time, and one begins after the last Begin. After a try with something left the next one
// comes after 200 ms, then later and later, up to 10 s. After 64 tries without a Begin, about ten minutes,
// the loop gives up: settled is closed, GivenUp counts, and the first time since the task was done the loop
// calls warn.
//
// # Ownership and concurrency
//
// The loop owns its goroutine, which runs only while something is left. Close ends it and waits. Begin and
// Again do not wait, and may be called with locks that a try takes. All methods are safe for concurrent use.
//
// # Failure
//
// A try cannot fail: what it cannot do now is left.
package settle
