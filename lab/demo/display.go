package demo

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// How often progress is shown: in place on a terminal, as a line elsewhere.
const (
	liveInterval  = 200 * time.Millisecond
	plainInterval = 5 * time.Second
)

// display writes progress. Safe for concurrent use.
type display struct {
	out      io.Writer
	terminal bool

	mu sync.Mutex
	// live says that the current line holds progress and is to be overwritten.
	live bool
}

// say writes one line that stays.
func (d *display) say(format string, args ...any) { d.print(fmt.Sprintf(format, args...) + "\n") }

// print writes text that stays.
func (d *display) print(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clearLocked()
	io.WriteString(d.out, text)
}

// update shows a line of progress. On a terminal it replaces the line before.
func (d *display) update(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clearLocked()
	if d.terminal {
		d.live = true
		io.WriteString(d.out, line)
		return
	}
	io.WriteString(d.out, line+"\n")
}

// endLine leaves the cursor on an empty line.
func (d *display) endLine() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clearLocked()
}

// clearLocked wipes a line of progress.
func (d *display) clearLocked() {
	if d.live {
		io.WriteString(d.out, "\r\x1b[K")
		d.live = false
	}
}

// follow shows the progress of a run at intervals until the caller calls stop, which shows it
// once more.
func (d *display) follow(rec *recorder) (stop func()) {
	interval := plainInterval
	if d.terminal {
		interval = liveInterval
	}
	quit, done := make(chan struct{}), make(chan struct{})
	start := time.Now()
	go func() {
		defer close(done)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				d.update(progressLine(rec.progress(), time.Since(start)))
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
		d.update(progressLine(rec.progress(), time.Since(start)))
		d.keep()
	}
}

// keep ends the line of progress, so that the next output does not replace it.
func (d *display) keep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.live {
		io.WriteString(d.out, "\n")
		d.live = false
	}
}

// progressLine returns one line of fewer than 80 characters, below 100,000 requests and
// 10,000 s: a terminal that wraps a line cannot show it in place.
func progressLine(p progress, elapsed time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%5.1fs %*d/%d", elapsed.Seconds(), len(strconv.Itoa(p.total)), p.finished, p.total)
	if sum := p.served.sum(); sum > 0 {
		fmt.Fprintf(&b, "  device %2d%% host %2d%% disk %2d%% recomputed %2d%%",
			percent(p.served.Device, sum), percent(p.served.Host, sum), percent(p.served.Disk, sum), percent(p.served.Recomputed, sum))
	}
	if p.failed > 0 {
		fmt.Fprintf(&b, "  %d failed", p.failed)
	}
	return b.String()
}

func percent(part, whole uint64) int { return int((100*part + whole/2) / whole) }
