package kv

import (
	"crypto/rand"
	"encoding/binary"
)

// randomIDBits is the size of a random id. JSON readers that keep numbers as IEEE
// doubles, such as JavaScript and jq, hold integers exactly up to 2^53 and silently
// change larger ones. Among a million live ids of 53 bits two are equal with a
// chance of one in 18,000.
const randomIDBits = 53

// RandomID returns a random id from 1 to 2^53-1, for sessions, agents, engines and
// publishers. The id differs from those of other processes and earlier starts. It
// cannot be guessed, because it comes from the system's secure random numbers. 0
// stands for no id everywhere.
func RandomID() uint64 { return randomID(rand.Read) }

// randomID returns a random id of randomIDBits bits that is not 0. read fills its argument with
// random bytes. It never fails, because crypto/rand ends the process instead.
func randomID(read func([]byte) (int, error)) uint64 {
	var b [8]byte
	for {
		_, _ = read(b[:])
		if id := binary.LittleEndian.Uint64(b[:]) >> (64 - randomIDBits); id != 0 {
			return id
		}
	}
}
