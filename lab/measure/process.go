package measure

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// CPUSeconds returns the processor time of this process so far, all threads together.
func CPUSeconds() float64 {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		panic("BUG: getrusage of the process itself failed")
	}
	seconds := func(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(r.Utime) + seconds(r.Stime)
}

// RSS returns the resident memory of this process in bytes.
func RSS() (uint64, error) {
	const name = "/proc/self/statm"
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	var size, resident uint64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0, fmt.Errorf("%s %q: %w", name, text, err)
	}
	return resident * uint64(os.Getpagesize()), nil
}
