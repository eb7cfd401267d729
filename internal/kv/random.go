package kv

import (
	"crypto/rand"
	"encoding/binary"
)

// randomIDBits is the size of a random id: JSON readers that keep numbers as
// IEEE doubles, JavaScript's and jq's among them, hold integers exactly up to
// 2^53 and would silently change a larger one. Among a million live ids of 53
// bits two are equal with a chance of one in 18,000.
const randomIDBits = 53

// RandomID is a random id from 1 to 2^53-1, for what must not be mistaken for
// anything of another process or an earlier start: sessions, agents, engines,
// publishers. It comes from the system's secure random numbers, so that it
// cannot be guessed, and is never 0, which says "none" everywhere.
func RandomID() uint64 { return randomID(rand.Read) }

// randomID draws from read, which never fails: crypto/rand ends the process
// instead.
func randomID(read func([]byte) (int, error)) uint64 {
	var b [8]byte
	for {
		_, _ = read(b[:])
		if id := binary.LittleEndian.Uint64(b[:]) >> (64 - randomIDBits); id != 0 {
			return id
		}
	}
}
