package storage

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// killDir names the arena in the environment of the process that is killed.
const killDir = "BLOCKYARD_TEST_KILL_DIR"

func killConfig(dir string) ArenaConfig {
	return ArenaConfig{Dir: dir, Bytes: 12 * testSlot, ExtentBytes: 4 * testSlot, Log: zap.NewNop()}
}

// sealSlot gives a slot a new block, in the order that an agent does.
func sealSlot(t *testing.T, p *HostExtent, i uint32, fill byte) Record {
	t.Helper()
	r, err := p.Slots.Get(i)
	if err != nil {
		r = Record{} // a kill cut its last write short
	}
	r = Record{Key: kv.BlockKey{fill, byte(i)}.InGroup(0), Generation: r.Generation + 1, State: StateGranted, Length: testSlot}
	noError(t, p.Extent.SetGeneration(i, r.Generation))
	p.Slots.Put(i, &r)
	for j := range p.Extent.Slot(i) {
		p.Extent.Slot(i)[j] = fill
	}
	sum, err := p.Extent.ContentSum(i, r.Key, testSlot)
	if err != nil {
		t.Fatal(err)
	}
	r.State, r.Checksum = StateSealed, Bind(sum, r.Key, r.Generation)
	p.Slots.Put(i, &r)
	return r
}

// TestAgentToBeKilled is the process that TestKilledAgentLosesNothing starts. It
// says what it has done until it is killed.
func TestAgentToBeKilled(t *testing.T) {
	dir := os.Getenv(killDir)
	if dir == "" {
		t.Skip("only runs as a child of TestKilledAgentLosesNothing")
	}
	h := openHost(t, killConfig(dir))
	ns := indexOf(t, h.arena, nsA)
	parts := h.Claim(ns)
	for session := rand.Uint64(); ; session++ {
		if len(parts) == 3 {
			fmt.Println("drop", parts[0].ID, 0, 0)
			h.Drop(parts[0])
			parts = parts[1:]
		}
		part, err := h.Grow(ns, testSlot, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part)
		for _, old := range h.Sessions().All() {
			h.Sessions().End(old.Session)
		}
		if _, err := h.Sessions().Begin(session, nsA); err != nil {
			t.Fatal(err)
		}
		noError(t, h.Sessions().AddProcess(session, Process{PID: int32(os.Getpid()), Start: 1}))
		for n := range uint32(12) {
			p := &parts[n%uint32(len(parts))]
			i := n % p.Slots.Slots()
			fmt.Println("seal", p.ID, i, 0)
			r := sealSlot(t, p, i, byte(session+uint64(n)))
			fmt.Println("sealed", p.ID, i, r.Generation)
		}
	}
}

func TestKilledAgentLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := tmpfsDir(t)
	// sealed maps extent and slot to the generation that must be there.
	sealed := map[[2]uint32]uint64{}
	var lastID uint32
	checked := 0
	for round := range 12 {
		runAndKill(t, dir, rand.IntN(400), func(what string, id, slot uint32, generation uint64) {
			switch what {
			case "sealed":
				sealed[[2]uint32{id, slot}] = generation
				lastID = max(lastID, id)
			case "seal":
				delete(sealed, [2]uint32{id, slot})
			case "drop":
				for i := range uint32(4) {
					delete(sealed, [2]uint32{id, i})
				}
			}
		})
		h := openHost(t, killConfig(dir))
		if !h.Warm() {
			t.Fatal("the arena is cold")
		}
		parts := h.Claim(indexOf(t, h.arena, nsA))
		found, damaged := checkSealed(t, parts, sealed)
		if damaged > round+1 {
			t.Errorf("%d records are damaged after %d kills", damaged, round+1)
		}
		checked += found
		if all := h.Sessions().All(); len(all) > 1 {
			t.Errorf("%d sessions, the agent had one at a time", len(all))
		}
		if next := h.table.header.nextExtent; next <= uint64(lastID) {
			t.Errorf("the next extent would be %d, and %d was used", next, lastID)
		}
		noError(t, h.Close(parts, true))
	}
	t.Logf("%d blocks came back", checked)
	if checked == 0 {
		t.Error("nothing was checked")
	}
}

// runAndKill starts an agent on dir and kills it when it has said so many lines.
func runAndKill(t *testing.T, dir string, lines int, did func(what string, id, slot uint32, generation uint64)) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAgentToBeKilled$")
	cmd.Env = append(os.Environ(), killDir+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	noError(t, cmd.Start())
	for in := bufio.NewScanner(out); in.Scan(); lines-- {
		if lines == 0 {
			noError(t, cmd.Process.Kill())
		}
		var what string
		var id, slot uint32
		var generation uint64
		if _, err := fmt.Sscan(in.Text(), &what, &id, &slot, &generation); err != nil {
			t.Errorf("the agent said %q", in.Text())
			continue
		}
		did(what, id, slot, generation)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the agent ended by itself")
	}
}

// checkSealed verifies every sealed block that is there, and that those that
// must be there are. It returns their number and that of damaged records.
func checkSealed(t *testing.T, parts []HostExtent, sealed map[[2]uint32]uint64) (found, damaged int) {
	t.Helper()
	for _, p := range parts {
		for i := range p.Slots.Slots() {
			r, err := p.Slots.Get(i)
			if err != nil {
				damaged++
			}
			must, ok := sealed[[2]uint32{p.ID, i}]
			if ok && (r.State != StateSealed || r.Generation != must) {
				t.Errorf("extent %d, slot %d: %v at generation %d, want sealed at %d", p.ID, i, r.State, r.Generation, must)
			}
			if r.State != StateSealed {
				continue
			}
			if ok {
				found++
			}
			if sum, err := p.Extent.ContentSum(i, r.Key, uint64(r.Length)); err != nil || Bind(sum, r.Key, r.Generation) != r.Checksum {
				t.Errorf("extent %d, slot %d: other bytes than its record says, %v", p.ID, i, err)
			}
		}
	}
	if found != len(sealed) {
		t.Errorf("%d sealed blocks are there, want %d", found, len(sealed))
	}
	return found, damaged
}
