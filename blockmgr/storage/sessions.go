package storage

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// MaxSessions is the number of sessions that a session table can hold.
	MaxSessions = 512
	// MaxSessionProcesses is the number of processes that one session can have.
	MaxSessionProcesses = 60
	// MaxPinnedSessions is the number of sessions that can have pins at the same
	// time: pin words have a bit for each.
	MaxPinnedSessions = 64
	// NoPinBit is the pin bit of a session that has no pins any more.
	NoPinBit = 255
)

// ErrSessions: the session table or its pin bits are used up.
var ErrSessions = errors.New("session table is full")

// Process is a process of a session.
type Process struct {
	PID int32
	// Start is field 22 of /proc/PID/stat, clock ticks since boot: with it a PID
	// names one process of this boot.
	Start uint64
}

// SessionRecord is what the session table says about one session.
type SessionRecord struct {
	Session   uint64
	Namespace kv.NamespaceID
	// PinBit is the session's bit in pin words, or NoPinBit.
	PinBit uint8
	// Processes are those that may touch the session's slots, as far as they were
	// recorded in this agent's pid namespace.
	Processes []Process
	// Foreign: there are others, recorded in another pid namespace. Their pids
	// mean nothing here, so nobody can tell whether they are gone.
	Foreign bool
}

// SessionTable remembers across a restart of the agent which sessions there are
// and which processes each has. It lies in a host arena's slot table. Whatever
// instant the agent is killed at, each session is there as before an update or
// as after it. Its methods are safe for concurrent use; after the arena was
// closed they change nothing.
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

// pidNamespace is the inode of this process's pid namespace, zero where there is
// no telling.
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

// Begin enters a session and gives it a pin bit that nobody else has.
// ErrSessions means that there is no place or no bit; another error that the
// session is there already.
func (t *SessionTable) Begin(session uint64, ns kv.NamespaceID) (pinBit uint8, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	place, taken := -1, uint64(0)
	for i, e := range t.entriesLocked() {
		switch {
		case !e.used():
			if place < 0 {
				place = i
			}
		case e[wordSession] == session:
			return NoPinBit, fmt.Errorf("session %d is in the session table already", session)
		case e.pinBit() != NoPinBit:
			taken |= 1 << e.pinBit()
		}
	}
	if place < 0 {
		return NoPinBit, fmt.Errorf("%w: it holds %d sessions, the most it can", ErrSessions, MaxSessions)
	}
	if pinBit = uint8(bits.TrailingZeros64(^taken)); pinBit >= MaxPinnedSessions {
		return NoPinBit, fmt.Errorf("%w: %d sessions have pins, the most that can", ErrSessions, MaxPinnedSessions)
	}
	t.entryLocked(place).apply(beginStores(session, ns, pinBit))
	return pinBit, nil
}

// AddProcess enters a process of a session, before the process learns of any
// slot. Entering it twice changes nothing. ErrSessions means that the session
// has MaxSessionProcesses.
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

// ReleasePins makes the session's pin bit free for others. The caller has
// cleared it in all pin words.
func (t *SessionTable) ReleasePins(session uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.findLocked(session); e != nil {
		e.apply(e.releaseStores())
	}
}

// End forgets a session, whose processes are gone. The caller has cleared its
// pin bit in all pin words.
func (t *SessionTable) End(session uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.findLocked(session); e != nil {
		e.apply(endStores())
	}
}

// All are the sessions in the table, in no particular order.
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

// check reports what is wrong with a table that an earlier agent left.
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

func (t *SessionTable) findLocked(session uint64) sessionEntry {
	for _, e := range t.entriesLocked() {
		if e.used() && e[wordSession] == session {
			return e
		}
	}
	return nil
}
