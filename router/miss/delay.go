package miss

import "time"

// Delay estimates how late the messages of a publisher come: by how much each was slower than the
// fastest one of the last minute or two. The clocks of publisher and router need not agree. The zero value is ready for use. A Delay is for one
// goroutine.
type Delay struct {
	// start is when the first message came, first when it was published. fastest and before are the least differences between
	// arrival and publication in this and in the last window, which began at since.
	start, since    time.Time
	first           uint64
	fastest, before time.Duration
}

// delayWindow is how long a fastest message counts at least, so that a clock that is set or drifts
// does not matter for long.
const delayWindow = time.Minute

// Of returns how late a message came. published is in Unix milliseconds on the publisher's clock.
func (d *Delay) Of(now time.Time, published uint64) time.Duration {
	if published == 0 {
		return 0
	}
	if d.start.IsZero() {
		d.start, d.since, d.first = now, now, published
	}
	// A publisher's clock may be anything.
	took := now.Sub(d.start) - time.Duration(min(max(int64(published-d.first), -maxClock), maxClock))*time.Millisecond
	if now.Sub(d.since) > delayWindow {
		d.since, d.before, d.fastest = now, d.fastest, took
	}
	d.fastest = min(d.fastest, took)
	return took - min(d.fastest, d.before)
}

// maxClock bounds how far a publisher's clock may go, in milliseconds: about 30 years.
const maxClock = 1 << 40
