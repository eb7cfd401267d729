package kvbm

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestManagerEndsWithWhateverEndsFirst(t *testing.T) {
	for name, end := range map[string]func(cancellation, parent func(), m *Manager){
		"cancellation": func(cancellation, _ func(), _ *Manager) { cancellation() },
		"context":      func(_, parent func(), _ *Manager) { parent() },
		"close": func(_, _ func(), m *Manager) {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, place := both(t, 4)
			token, cancelToken := context.WithCancel(t.Context())
			defer cancelToken()
			parent, cancelParent := context.WithCancel(t.Context())
			defer cancelParent()
			cfg.Runtime.Cancellation = token.Done()
			m, err := New(parent, cfg, place)
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-m.Done():
				t.Fatal("ended from the start")
			default:
			}
			end(cancelToken, cancelParent, m)
			<-m.Done()
			if _, err := m.Begin(); !errors.Is(err, blockmgr.ErrClosed) {
				t.Errorf("a session begins in a manager that has ended: %v", err)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			cfg.Runtime.Cancellation = nil // it may have fired, and would end the next one too
			open(t, cfg, place)            // the directories are free again
		})
	}
}

func TestBlocksOutliveTheManagerAndAreAnnouncedByNew(t *testing.T) {
	cfg, place := both(t, 8)
	told := &listener{}
	cfg.Events = told
	c := open(t, cfg, place)
	blocks := c.sequence(1, 3)
	c.add(1, blocks)
	want := append(stored(kv.TierHost, blocks), stored(kv.TierDisk, blocks)...)
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(told.take())); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := told.take(); len(got) != 0 {
		t.Errorf("closing said %q", got)
	}
	m, err := New(t.Context(), cfg, place)
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(slices.Values(told.take()))
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("after a restart told %q, want %q", got, want)
	}
	if again := open(t, cfg, place); again.find(blocks) != 3 {
		t.Error("blocks are lost")
	}
}

func TestEventsOfOneTierComeInTheOrderInWhichThingsHappened(t *testing.T) {
	cfg, place := both(t, 4)
	cfg.DiskLayout = nil
	told := &listener{}
	cfg.Events = told
	c := open(t, cfg, place)
	first, second := c.sequence(1, 4), c.sequence(2, 4)
	c.add(1, first)
	c.add(2, second)
	want := slices.Concat(stored(kv.TierHost, first), removed(kv.TierHost, first), stored(kv.TierHost, second))
	if got := told.take(); !slices.Equal(got, want) {
		t.Errorf("told %q\nwant %q", got, want)
	}
}

// consolidator counts calls.
type consolidator struct{ started, stored, closed int }

func (c *consolidator) BlockStored(kv.NamespaceID, kv.Tier, blockmgr.Block) { c.stored++ }

func (c *consolidator) BlockRemoved(kv.NamespaceID, kv.Tier, blockmgr.Block) {}

func (c *consolidator) Close() error { c.closed++; return nil }

func TestConsolidatorListensUnlessEventsAreSet(t *testing.T) {
	engine, err := config.NewVLLM("tcp://127.0.0.1:5557", "tcp://*:5558")
	if err != nil {
		t.Fatal(err)
	}
	cfg, place := both(t, 4)
	cfg.Consolidator = &engine
	events := &consolidator{}
	place.Consolidate = func(c Consolidation) (Consolidator, error) {
		events.started++
		if c.Consolidator != engine || c.WorkerID != cfg.Runtime.WorkerID || c.BlockTokens != 16 {
			t.Errorf("started %+v", c)
		}
		return events, nil
	}
	c := open(t, cfg, place)
	c.add(1, c.sequence(1, 1))
	if err := c.Close(); err != nil || events.started != 1 || events.stored != 2 || events.closed != 1 {
		t.Errorf("consolidator %+v, %v", events, err)
	}

	cfg, other := both(t, 4)
	explicit := &listener{}
	cfg.Consolidator, cfg.Events, other.Consolidate = &engine, explicit, place.Consolidate
	c = open(t, cfg, other)
	c.add(1, c.sequence(1, 1))
	if got := explicit.take(); events.started != 1 || len(got) != 2 {
		t.Errorf("started %d times, told %q", events.started, got)
	}

	cfg, other = both(t, 4)
	other.HostDir, cfg.Consolidator, other.Consolidate = "/proc/none", &engine, place.Consolidate
	if _, err := New(t.Context(), cfg, other); err == nil || events.started != events.closed {
		t.Errorf("New left a consolidator open: %+v, %v", events, err)
	}

	cfg, other = both(t, 4)
	broken := errors.New("no such engine")
	cfg.Consolidator = &engine
	other.Consolidate = func(Consolidation) (Consolidator, error) { return nil, broken }
	if _, err := New(t.Context(), cfg, other); !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "consolidator") {
		t.Errorf("a consolidator that does not start: %v", err)
	}
}

func TestEachWarningIsLoggedOnce(t *testing.T) {
	engine, err := config.NewVLLM("tcp://127.0.0.1:5557", "tcp://*:5558")
	if err != nil {
		t.Fatal(err)
	}
	cfg, place := both(t, 4)
	cfg.Runtime.NIXL = config.NIXLOptions{Mode: config.NIXLEnabledWithAgent, Agent: "seven"}
	cfg.Consolidator = &engine
	logs, observed := observer.New(zap.WarnLevel)
	place.Log = zap.New(logs)
	open(t, cfg, place)
	var got []string
	for _, e := range observed.FilterMessage("configuration").All() {
		w, _ := e.ContextMap()["warning"].(string)
		got = append(got, w)
	}
	want := append(cfg.Warnings(), "consolidator is set, but neither events nor the place's consolidate: nobody merges the engine's events with the manager's")
	if len(want) != 3 || !slices.Equal(got, want) {
		t.Errorf("logged %q, want %q", got, want)
	}

	cfg, place = both(t, 4)
	cfg.HostLayout, cfg.DiskLayout, place.Log = nil, nil, zap.New(logs)
	observed.TakeAll()
	open(t, cfg, place)
	if n := observed.FilterField(zap.String("warning", "host_layout and disk_layout are not set: no block is kept")).Len(); n != 1 {
		t.Errorf("a manager without tiers is warned of %d times", n)
	}
}

func TestWhatADeadProgramHeldIsFreeOnceItsProcessesAreGone(t *testing.T) {
	child := exec.Command("cat")
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	cfg, place := both(t, 8)
	dead := open(t, cfg, place)
	alive, err := dead.Begin(blockmgr.Process{PID: int32(child.Process.Pid), Start: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []blockmgr.SessionID{dead.s, alive} {
		if _, err := dead.Pool().Allocate(s, 2); err != nil {
			t.Fatal(err)
		}
	}
	dead.core.Abandon()
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}

	m := open(t, cfg, place)
	if st := m.Pool().Stats(); st.PreviousSessions != 1 || st.Host.Quarantined != 2 {
		t.Errorf("%d earlier sessions hold %d slots, want 1 with 2", st.PreviousSessions, st.Host.Quarantined)
	}
	if err := errors.Join(stdin.Close(), child.Wait()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the slots are free", func() bool { return m.Pool().Stats().Host.Free == 8 })
}

func TestProcessThatIsNotKnownMayRun(t *testing.T) {
	for _, p := range []blockmgr.Process{{}, {PID: -1, Start: 1}, {PID: 1 << 30}} {
		if !mayRun(p) {
			t.Errorf("%v counts as gone", p)
		}
	}
	if mayRun(blockmgr.Process{PID: 1 << 30, Start: 1}) {
		t.Error("a pid that no process has counts as running")
	}
}
