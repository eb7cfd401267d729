package nats

import "time"

// Age is how long ago a message of the stream was stored.
func (n *Source) Age(stored, now time.Time) time.Duration { return n.stream.age(stored, now) }

// CaughtUp is caughtUp.
const CaughtUp = caughtUpMessages

// ErrNoJetStream is errNoJetStream.
var ErrNoJetStream = errNoJetStream
