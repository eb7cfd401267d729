package dynamo

import (
	"slices"
	"time"
)

// Bounds of the messages that wait for their publisher's record.
const (
	maxUnclaimed      = 1024
	maxUnclaimedBytes = 16 << 20
	unclaimedMaxAge   = 5 * time.Second
)

// message is an encoded envelope of an unknown publisher.
type message struct {
	publisher  uint64
	data       []byte
	receivedAt time.Time
}

// unclaimed keeps messages of unknown publishers for a short time. A poll may find a record
// after the first events of its publisher. A source without a recovery target needs those
// first events.
type unclaimed struct {
	messages []message
	bytes    int
	// dropped counts messages that nobody claimed.
	dropped uint64
}

// add keeps a message of an unknown publisher. It drops the oldest messages that are beyond the
// bounds or too old.
func (u *unclaimed) add(publisher uint64, data []byte, now time.Time) {
	u.messages = append(u.messages, message{publisher, data, now})
	u.bytes += len(data)
	for len(u.messages) > maxUnclaimed || u.bytes > maxUnclaimedBytes || now.Sub(u.messages[0].receivedAt) > unclaimedMaxAge {
		u.bytes -= len(u.messages[0].data)
		u.messages = slices.Delete(u.messages, 0, 1)
		u.dropped++
		if len(u.messages) == 0 {
			return
		}
	}
}

// claim removes and returns the messages of a publisher whose record was found, in order.
func (u *unclaimed) claim(publisher uint64) [][]byte {
	var found [][]byte
	u.messages = slices.DeleteFunc(u.messages, func(m message) bool {
		if m.publisher == publisher {
			found = append(found, m.data)
			u.bytes -= len(m.data)
		}
		return m.publisher == publisher
	})
	return found
}
