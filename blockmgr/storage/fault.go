package storage

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Guard runs fn, which touches mapped memory, and turns a fault into an error:
// a file that somebody truncated would otherwise kill the process with SIGBUS.
func Guard(fn func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			err = fmt.Errorf("mapped memory at %#x: %w", r.Addr(), r)
		default:
			panic(r)
		}
	}()
	fn()
	return nil
}
