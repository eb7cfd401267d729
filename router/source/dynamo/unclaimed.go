package dynamo

import (
	"slices"
	"time"
)

// Bounds of messages that came before the record of their publisher.
const (
	maxUnclaimed      = 1024
	maxUnclaimedBytes = 16 << 20
	unclaimedFor      = 5 * time.Second
)

// message is an encoded envelope of an unknown publisher.
type message struct {
	publisher uint64
	data      []byte
	came      time.Time
}

// unclaimed keeps messages of unknown publishers for a short time. A record is found up to
// one poll after its publisher's first events, and a source that cannot be asked must not
// begin with a hole.
type unclaimed struct {
	kept  []message
	bytes int
	// dropped counts messages that nobody claimed.
	dropped uint64
}

func (u *unclaimed) add(publisher uint64, data []byte, now time.Time) {
	u.kept = append(u.kept, message{publisher, data, now})
	u.bytes += len(data)
	for len(u.kept) > maxUnclaimed || u.bytes > maxUnclaimedBytes || now.Sub(u.kept[0].came) > unclaimedFor {
		u.bytes -= len(u.kept[0].data)
		u.kept = slices.Delete(u.kept, 0, 1)
		u.dropped++
		if len(u.kept) == 0 {
			return
		}
	}
}

// claim returns and forgets the messages of a publisher, in order.
func (u *unclaimed) claim(publisher uint64) [][]byte {
	var found [][]byte
	u.kept = slices.DeleteFunc(u.kept, func(m message) bool {
		if m.publisher == publisher {
			found = append(found, m.data)
			u.bytes -= len(m.data)
		}
		return m.publisher == publisher
	})
	return found
}
