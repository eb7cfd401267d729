package replica

import (
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// movedTokens are load.Progress.MovedTokens of one change. They travel in a key of their own beside the
// changes: an earlier version skips the key and reads the changes.
type movedTokens struct {
	number uint64
	tokens int64
}

// movedKeys returns how many keys appendMoved appends: 1 if some change has moved tokens.
func movedKeys(all []change) uint32 {
	for i := range all {
		if all[i].MovedTokens > 0 {
			return 1
		}
	}
	return 0
}

// appendMoved appends the key moved: numbers of bookings, in the order of the changes, each followed by
// its moved tokens.
func appendMoved(dst []byte, all []change) []byte {
	if movedKeys(all) == 0 {
		return dst
	}
	n := uint32(0)
	for i := range all {
		if all[i].MovedTokens > 0 {
			n += 2
		}
	}
	dst = msgp.AppendArrayHeader(msgp.AppendString(dst, "moved"), n)
	for i := range all {
		if c := &all[i]; c.MovedTokens > 0 {
			dst = msgp.AppendUint64(dst, c.Number)
			dst = msgp.AppendUint64(dst, uint64(min(c.MovedTokens, math.MaxInt32)))
		}
	}
	return dst
}

// readMoved reads the value of moved, for at most limit changes.
func readMoved(c *msgpack.Reader, limit int) (all []movedTokens) {
	n := c.Array()
	if c.Err == nil && (n%2 != 0 || n > 2*limit) {
		c.Fail("moved of %d elements: want pairs, at most %d", n, limit)
	}
	for range n / 2 {
		one := movedTokens{c.Uint(maxNumber), int64(c.Uint(math.MaxInt32))}
		if c.Err != nil {
			return nil
		}
		all = append(all, one)
	}
	return all
}

// applyMoved puts moved tokens into the changes, which have the same order. Ends have none.
func applyMoved(all []change, moved []movedTokens) {
	for i := range all {
		c := &all[i]
		if len(moved) > 0 && moved[0].number == c.Number && c.kind != ended {
			c.MovedTokens, moved = moved[0].tokens, moved[1:]
		}
	}
}
