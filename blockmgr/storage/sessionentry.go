package storage

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	sessionEntryBytes = 1024
	sessionTableBytes = MaxSessions * sessionEntryBytes
	entryWords        = sessionEntryBytes / 8

	// The words of an entry. Word 0 is what makes the others count.
	wordControl   = 0
	wordSession   = 1
	wordNamespace = 2
	wordProcesses = 8

	// The bytes of the control word: 1 when the entry is used, the pin bit, the
	// number of processes, and zeros.
	controlUsed     = 1
	controlPin      = 8
	controlCount    = 16
	controlCountEnd = 24
)

// sessionEntry is one KiB of a session table, in words:
//
//	control u64 @0 | session u64 @8 | namespace id[16] @16 | zero[32] @32 |
//	60 × (pid u32 | inode of its pid namespace u32 | start u64) @64
//
// An update fills words that do not count yet and then stores the control word,
// which makes them count. So a kill between any two stores leaves an entry as it
// was before the update or as it is after.
type sessionEntry []uint64

// store is one word to be stored in an entry.
type store struct {
	word  int
	value uint64
}

// apply executes stores in order.
func (e sessionEntry) apply(stores []store) {
	for _, s := range stores {
		atomic.StoreUint64(&e[s.word], s.value)
	}
}

// control is the control word of an entry in use.
func control(pinBit uint8, processes int) uint64 {
	return controlUsed | uint64(pinBit)<<controlPin | uint64(processes)<<controlCount
}

func beginStores(session uint64, ns kv.NamespaceID, pinBit uint8) []store {
	return []store{
		{wordSession, session},
		{wordNamespace, binary.LittleEndian.Uint64(ns[:8])},
		{wordNamespace + 1, binary.LittleEndian.Uint64(ns[8:])},
		{wordControl, control(pinBit, 0)},
	}
}

func (e sessionEntry) addStores(p Process, pidns uint32) []store {
	n := e.processes()
	return []store{
		{wordProcesses + 2*n, uint64(uint32(p.PID)) | uint64(pidns)<<32},
		{wordProcesses + 2*n + 1, p.Start},
		{wordControl, control(e.pinBit(), n+1)},
	}
}

func (e sessionEntry) releaseStores() []store {
	return []store{{wordControl, control(NoPinBit, e.processes())}}
}

func endStores() []store { return []store{{wordControl, 0}} }

func (e sessionEntry) used() bool     { return e[wordControl] != 0 }
func (e sessionEntry) pinBit() uint8  { return uint8(e[wordControl] >> controlPin) }
func (e sessionEntry) processes() int { return int(uint8(e[wordControl] >> controlCount)) }

// process is the i-th process and the inode of the pid namespace that its pid
// belongs to.
func (e sessionEntry) process(i int) (p Process, pidns uint32) {
	word := e[wordProcesses+2*i]
	return Process{PID: int32(uint32(word)), Start: e[wordProcesses+2*i+1]}, uint32(word >> 32)
}

// check reports what is wrong with an entry that was found.
func (e sessionEntry) check() error {
	c := e[wordControl]
	pinned := e.pinBit() < MaxPinnedSessions || e.pinBit() == NoPinBit
	if c != 0 && (uint8(c) != controlUsed || c>>controlCountEnd != 0 || !pinned || e.processes() > MaxSessionProcesses) {
		return fmt.Errorf("its first word is %#x", c)
	}
	return nil
}

// record is what the entry says to an agent in pid namespace pidns.
func (e sessionEntry) record(pidns uint32) SessionRecord {
	r := SessionRecord{Session: e[wordSession], PinBit: e.pinBit()}
	binary.LittleEndian.PutUint64(r.Namespace[:8], e[wordNamespace])
	binary.LittleEndian.PutUint64(r.Namespace[8:], e[wordNamespace+1])
	for i := range e.processes() {
		p, home := e.process(i)
		if home == 0 || home != pidns {
			r.Foreign = true
			continue
		}
		r.Processes = append(r.Processes, p)
	}
	return r
}
