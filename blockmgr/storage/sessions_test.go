package storage

import (
	"errors"
	"math/bits"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func newTestTable() *SessionTable {
	return newSessionTable(make([]uint64, MaxSessions*entryWords), 1000)
}

// reopened is the table that another agent finds in the same memory.
func reopened(t *SessionTable, pidns uint32) *SessionTable { return newSessionTable(t.words, pidns) }

func bySession(records []SessionRecord) []SessionRecord {
	slices.SortFunc(records, func(a, b SessionRecord) int { return int(a.Session) - int(b.Session) })
	return records
}

func TestSessionTableAgreesWithAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		table, model := newTestTable(), map[uint64]SessionRecord{}
		session := rapid.Uint64Range(0, 80)
		rt.Repeat(map[string]func(*rapid.T){
			"begin": func(rt *rapid.T) {
				id, ns := session.Draw(rt, "session"), kv.NamespaceID{rapid.Byte().Draw(rt, "namespace"), 15: 1}
				var used uint64
				for _, r := range model {
					if r.PinBit != NoPinBit {
						used |= 1 << r.PinBit
					}
				}
				_, there := model[id]
				bit, err := table.Begin(id, ns)
				if full := bits.OnesCount64(used) == MaxPinnedSessions; (err != nil) != (there || full) || errors.Is(err, ErrSessions) && !full {
					rt.Fatalf("there %v, full %v: %v", there, full, err)
				}
				if err != nil {
					return
				}
				if used&(1<<bit) != 0 {
					rt.Fatalf("bit %d has an owner", bit)
				}
				model[id] = SessionRecord{Session: id, Namespace: ns, PinBit: bit}
			},
			"add": func(rt *rapid.T) {
				id, p := session.Draw(rt, "session"), Process{rapid.Int32Range(1, 70).Draw(rt, "pid"), rapid.Uint64Range(0, 1).Draw(rt, "start")}
				r, there := model[id]
				known := slices.Contains(r.Processes, p)
				full := len(r.Processes) == MaxSessionProcesses && !known
				if err := table.AddProcess(id, p); (err == nil) != (there && !full) || full && !errors.Is(err, ErrSessions) {
					rt.Fatalf("there %v, full %v: %v", there, full, err)
				}
				if there && !known && !full {
					r.Processes = append(r.Processes, p)
					model[id] = r
				}
			},
			"release": func(rt *rapid.T) {
				id := session.Draw(rt, "session")
				table.ReleasePins(id)
				if r, ok := model[id]; ok {
					r.PinBit = NoPinBit
					model[id] = r
				}
			},
			"end": func(rt *rapid.T) {
				id := session.Draw(rt, "session")
				table.End(id)
				delete(model, id)
			},
			"": func(rt *rapid.T) {
				var want []SessionRecord
				for _, r := range model {
					want = append(want, r)
				}
				later := reopened(table, 1000)
				if err := later.check(); err != nil {
					rt.Fatal(err)
				}
				if diff := cmp.Diff(bySession(want), bySession(later.All())); diff != "" {
					rt.Fatal(diff)
				}
			},
		})
	})
}

// Every update is a list of stores. Whichever of them a kill lets through, the
// table is valid and the session is as before or as after the update.
func TestKillBetweenStoresLeavesTheOldSessionOrTheNew(t *testing.T) {
	table := newTestTable()
	e := table.entryLocked(3)
	other := table.entryLocked(4)
	other.apply(beginStores(99, nsB, 5))
	// The entry had an owner before, with other values in every word.
	e.apply(beginStores(1<<60, nsB, 63))
	for pid := range int32(4) {
		e.apply(e.addStores(Process{PID: 100 + pid, Start: 1 << 50}, 7))
	}
	e.apply(endStores())

	updates := []func() []store{
		func() []store { return beginStores(7, nsA, 0) },
		func() []store { return e.addStores(Process{PID: 1, Start: 10}, 1000) },
		func() []store { return e.addStores(Process{PID: 2, Start: 20}, 1000) },
		func() []store { return e.releaseStores() },
		endStores,
		func() []store { return beginStores(8, nsB, 1) },
	}
	for i, update := range updates {
		stores := update()
		before := bySession(reopened(table, 1000).All())
		var seen [][]SessionRecord
		for n := range len(stores) + 1 {
			killed := reopened(&SessionTable{words: slices.Clone(table.words)}, 1000)
			killed.entryLocked(3).apply(stores[:n])
			if err := killed.check(); err != nil {
				t.Fatalf("update %d, %d stores: %v", i, n, err)
			}
			seen = append(seen, bySession(killed.All()))
		}
		e.apply(stores)
		after := bySession(reopened(table, 1000).All())
		if cmp.Equal(before, after) {
			t.Fatalf("update %d changed nothing", i)
		}
		for n, got := range seen {
			want := before
			if n == len(stores) {
				want = after
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("update %d, %d stores:\n%s", i, n, diff)
			}
		}
	}
}

func TestSessionTableIsBounded(t *testing.T) {
	table := newTestTable()
	for i := range uint64(MaxSessions) {
		if _, err := table.Begin(i, nsA); err != nil {
			t.Fatalf("session %d: %v", i, err)
		}
		table.ReleasePins(i)
	}
	if _, err := table.Begin(MaxSessions, nsA); !errors.Is(err, ErrSessions) {
		t.Errorf("one session more: %v", err)
	}
	for _, pid := range []int32{0, -1} {
		if err := table.AddProcess(1, Process{PID: pid}); err == nil {
			t.Errorf("pid %d was accepted", pid)
		}
	}
}

func TestProcessesOfAnotherPidNamespaceAreForeign(t *testing.T) {
	table := newTestTable()
	if _, err := table.Begin(1, nsA); err != nil {
		t.Fatal(err)
	}
	noError(t, table.AddProcess(1, Process{5, 6}))
	later := reopened(table, 2000)
	if r := later.All()[0]; !r.Foreign || len(r.Processes) != 0 {
		t.Errorf("%+v", r)
	}
	// The same pid is another process here.
	noError(t, later.AddProcess(1, Process{5, 6}))
	if r := later.All()[0]; !r.Foreign || len(r.Processes) != 1 {
		t.Errorf("%+v", r)
	}
	if r := reopened(table, 0).All()[0]; !r.Foreign || len(r.Processes) != 0 {
		t.Errorf("an agent that does not know its pid namespace: %+v", r)
	}
}

func TestDamagedSessionTableIsNoticed(t *testing.T) {
	for name, damage := range map[string]func(*SessionTable){
		"not a used entry":  func(t *SessionTable) { t.words[0] = 2 },
		"pin bit":           func(t *SessionTable) { t.words[0] = control(64, 0) },
		"process count":     func(t *SessionTable) { t.words[0] = control(0, MaxSessionProcesses+1) },
		"high bytes":        func(t *SessionTable) { t.words[0] = control(0, 0) | 1<<63 },
		"a session twice":   func(t *SessionTable) { t.entryLocked(1).apply(beginStores(7, nsA, 3)) },
		"a pin bit twice":   func(t *SessionTable) { t.entryLocked(1).apply(beginStores(8, nsA, 0)) },
		"nothing is broken": nil,
	} {
		table := newTestTable()
		table.entryLocked(0).apply(beginStores(7, nsA, 0))
		if damage != nil {
			damage(table)
		}
		if err := table.check(); (err != nil) != (damage != nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClosedSessionTableIsNotTouched(t *testing.T) {
	h := openHost(t, hostConfig(t.TempDir()))
	table := h.Sessions()
	noError(t, h.Close(nil, false))
	if _, err := table.Begin(1, nsA); err == nil {
		t.Error("a session began in a closed table")
	}
	if err := table.AddProcess(1, Process{1, 1}); err == nil {
		t.Error("a process was added to a closed table")
	}
	table.ReleasePins(1)
	table.End(1)
	if len(table.All()) != 0 {
		t.Error("a closed table has sessions")
	}
}
