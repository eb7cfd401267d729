package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// MaxSessions is the number of sessions that a session table can hold.
	MaxSessions = 512
	// MaxSessionProcesses is the number of processes that one session can have.
	MaxSessionProcesses = 60
	// MaxPinnedSessions is the number of sessions that can have pins at once: a pin word
	// has a bit for each.
	MaxPinnedSessions = 64
	// NoPinBit is the pin bit of a session without pins.
	NoPinBit = 255
)

// ErrSessions means that the session table or its pin bits are used up.
var ErrSessions = errors.New("session table is full")

// Process is a process of a session.
type Process struct {
	PID int32
	// Start is field 22 of /proc/PID/stat, in clock ticks since boot. PID and Start
	// together name one process of this boot.
	Start uint64
}

// SessionRecord is one session of a session table.
type SessionRecord struct {
	Session   uint64
	Namespace kv.NamespaceID
	// PinBit is the session's bit in pin words, or NoPinBit.
	PinBit uint8
	// Processes may touch the session's slots. They were recorded in this agent's pid
	// namespace.
	Processes []Process
	// Foreign means that other processes were recorded in another pid namespace. Their
	// pids mean nothing here, so the agent cannot tell whether they are gone.
	Foreign bool
}

// SessionTable keeps the sessions and their processes over a restart of the agent. It
// lies in a host arena's slot table. A kill at any instant leaves each session as it
// was before an update or as it is after. The methods are safe for concurrent use;
// after the arena was closed they change nothing.
type SessionTable struct {
	// pidns is the inode of this agent's pid namespace, zero if unknown.
	pidns uint32

	mu sync.Mutex
	// words is the mapped table, nil when closed.
	words []uint64
}

func newSessionTable(words []uint64, pidns uint32) *SessionTable {
	return &SessionTable{words: words, pidns: pidns}
}

// pidNamespace returns the inode of this process's pid namespace, zero where it is
// unknown.
func pidNamespace() uint32 {
	st, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return uint32(sys.Ino)
}

// Begin enters a session and returns a pin bit that no other session has.
// ErrSessions means that there is no free entry or no free bit. A session that is in
// the table already is another error.
func (t *SessionTable) Begin(session uint64, ns kv.NamespaceID) (pinBit uint8, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	free, taken := -1, uint64(0) // the first free entry; the pin bits in use
	for i, e := range t.entriesLocked() {
		switch {
		case !e.used():
			if free < 0 {
				free = i
			}
		case e[wordSession] == session:
			return NoPinBit, fmt.Errorf("session %d is in the session table already", session)
		case e.pinBit() != NoPinBit:
			taken |= 1 << e.pinBit()
		}
	}
	if free < 0 {
		return NoPinBit, fmt.Errorf("%w: it holds %d sessions, the most it can", ErrSessions, MaxSessions)
	}
	if pinBit = uint8(bits.TrailingZeros64(^taken)); pinBit >= MaxPinnedSessions {
		return NoPinBit, fmt.Errorf("%w: %d sessions have pins, the most that can", ErrSessions, MaxPinnedSessions)
	}
	t.entryLocked(free).apply(beginStores(session, ns, pinBit))
	return pinBit, nil
}

// AddProcess enters a process of a session, before the process learns of any slot.
// Entering a process twice changes nothing. ErrSessions means that the session has
// MaxSessionProcesses.
func (t *SessionTable) AddProcess(session uint64, p Process) error {
	if p.PID <= 0 {
		return fmt.Errorf("session %d: pid %d: want at least 1", session, p.PID)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.findLocked(session)
	if e == nil {
		return fmt.Errorf("session %d is not in the session table", session)
	}
	for i := range e.processes() {
		if got, pidns := e.process(i); got == p && pidns == t.pidns {
			return nil
		}
	}
	if e.processes() == MaxSessionProcesses {
		return fmt.Errorf("session %d: %w: it has %d processes, the most it can", session, ErrSessions, MaxSessionProcesses)
	}
	e.apply(e.addStores(p, t.pidns))
	return nil
}

// ReleasePins frees the session's pin bit. The caller has cleared the bit in all pin
// words.
func (t *SessionTable) ReleasePins(session uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.findLocked(session); e != nil {
		e.apply(e.releaseStores())
	}
}

// End removes a session whose processes are gone. The caller has cleared its pin bit
// in all pin words.
func (t *SessionTable) End(session uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.findLocked(session); e != nil {
		e.apply(endStores())
	}
}

// All returns the sessions in the table, in no particular order.
func (t *SessionTable) All() []SessionRecord {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []SessionRecord
	for _, e := range t.entriesLocked() {
		if e.used() {
			all = append(all, e.record(t.pidns))
		}
	}
	return all
}

// serves reports whether a session of namespace ns is in the table.
func (t *SessionTable) serves(ns kv.NamespaceID) bool {
	return slices.ContainsFunc(t.All(), func(r SessionRecord) bool { return r.Namespace == ns })
}

// check returns what is wrong with a table that an earlier agent left.
func (t *SessionTable) check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	sessions := map[uint64]struct{}{}
	var taken uint64
	for i, e := range t.entriesLocked() {
		if err := e.check(); err != nil {
			return fmt.Errorf("session table: entry %d: %w", i, err)
		}
		if !e.used() {
			continue
		}
		if _, twice := sessions[e[wordSession]]; twice {
			return fmt.Errorf("session table: session %d is there twice", e[wordSession])
		}
		sessions[e[wordSession]] = struct{}{}
		if bit := e.pinBit(); bit != NoPinBit {
			if taken&(1<<bit) != 0 {
				return fmt.Errorf("session table: pin bit %d is there twice", bit)
			}
			taken |= 1 << bit
		}
	}
	return nil
}

// close ends the use of the mapped memory.
func (t *SessionTable) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.words = nil
}

// entriesLocked yields all entries with their indices.
func (t *SessionTable) entriesLocked() iter.Seq2[int, sessionEntry] {
	return func(yield func(int, sessionEntry) bool) {
		for i := range len(t.words) / entryWords {
			if !yield(i, t.entryLocked(i)) {
				return
			}
		}
	}
}

func (t *SessionTable) entryLocked(i int) sessionEntry {
	return sessionEntry(t.words[i*entryWords : (i+1)*entryWords])
}

// findLocked returns the entry of a session, nil when it is not in the table.
func (t *SessionTable) findLocked(session uint64) sessionEntry {
	for _, e := range t.entriesLocked() {
		if e.used() && e[wordSession] == session {
			return e
		}
	}
	return nil
}

const (
	sessionEntryBytes = 1024
	sessionTableBytes = MaxSessions * sessionEntryBytes
	entryWords        = sessionEntryBytes / 8

	// The words of an entry. The control word makes the other words valid.
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
// An update first fills words that do not count yet. Then it stores the control word,
// which makes them count. A kill between any two stores leaves an entry as it was
// before the update or as it is after.
type sessionEntry []uint64

// store is one word to be stored in an entry.
type store struct {
	word  int
	value uint64
}

// apply executes the stores in order.
func (e sessionEntry) apply(stores []store) {
	for _, s := range stores {
		atomic.StoreUint64(&e[s.word], s.value)
	}
}

// control returns the control word of an entry in use.
func control(pinBit uint8, processes int) uint64 {
	return controlUsed | uint64(pinBit)<<controlPin | uint64(processes)<<controlCount
}

// beginStores returns the stores that make a free entry the session's, without processes. The control
// word comes last: it makes the other words valid.
func beginStores(session uint64, ns kv.NamespaceID, pinBit uint8) []store {
	return []store{
		{wordSession, session},
		{wordNamespace, binary.LittleEndian.Uint64(ns[:8])},
		{wordNamespace + 1, binary.LittleEndian.Uint64(ns[8:])},
		{wordControl, control(pinBit, 0)},
	}
}

// addStores returns the stores that add process p, of the pid namespace pidns, to the entry. The
// control word comes last: its new count makes the other words valid.
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

// process returns the i-th process and the inode of the pid namespace that its pid
// belongs to.
func (e sessionEntry) process(i int) (p Process, pidns uint32) {
	word := e[wordProcesses+2*i]
	return Process{PID: int32(uint32(word)), Start: e[wordProcesses+2*i+1]}, uint32(word >> 32)
}

// check returns what is wrong with an entry that an earlier agent left.
func (e sessionEntry) check() error {
	c := e[wordControl]
	pinned := e.pinBit() < MaxPinnedSessions || e.pinBit() == NoPinBit
	if c != 0 && (uint8(c) != controlUsed || c>>controlCountEnd != 0 || !pinned || e.processes() > MaxSessionProcesses) {
		return fmt.Errorf("its first word is %#x", c)
	}
	return nil
}

// record returns the session of the entry, for an agent in pid namespace pidns. It leaves out
// processes of other pid namespaces, whose pids mean nothing here, and sets Foreign instead.
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
