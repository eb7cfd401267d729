package events

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func testCheckpoints(t *testing.T) *checkpoints {
	t.Helper()
	return newCheckpoints(&Config{CheckpointDir: filepath.Join(t.TempDir(), "ranks")}, zap.NewNop())
}

// beginFile is a rank's checkpoint with something in it.
func beginFile(t *testing.T, s *checkpoints, worker kv.WorkerID) *checkpoint {
	t.Helper()
	c := s.begin(kv.Worker{ID: worker})
	if err := os.WriteFile(c.file(), []byte("state"), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// However many ranks there are, none loses its file while its session lives; of those
// that ended the oldest go.
func TestCheckpointOfALiveRankIsNotPruned(t *testing.T) {
	s := testCheckpoints(t)
	idle, ended := beginFile(t, s, 1), beginFile(t, s, 2)
	long := time.Now().Add(-time.Hour)
	for _, c := range []*checkpoint{idle, ended} {
		if err := os.Chtimes(c.file(), long, long); err != nil {
			t.Fatal(err)
		}
	}
	ended.end()
	for i := range maxCheckpoints {
		beginFile(t, s, kv.WorkerID(3+i)).end()
	}
	s.begin(kv.Worker{ID: 1000})
	if !agenttest.Exists(idle.file()) || agenttest.Exists(ended.file()) {
		t.Errorf("live and idle: %v, ended for long: %v; want true, false", agenttest.Exists(idle.file()), agenttest.Exists(ended.file()))
	}
}

// The rows are orders in which a rank ends, its engine is gone for good, another session of
// the rank begins and the agent stops.
func TestCheckpointGoesWithItsEngine(t *testing.T) {
	for name, c := range map[string]struct {
		steps string // e: the rank ends; g: its engine is gone; n: another session; s: the agent stops
		stays bool
	}{
		"said BYE":                   {"ge", false},
		"exited after its session":   {"eg", false},
		"lives":                      {"e", true},
		"ends":                       {"g", true}, // until the rank has ended
		"has a new session":          {"eng", true},
		"agent stops before":         {"seg", true},
		"agent stops meanwhile":      {"esg", true},
		"session while it is to end": {"sne", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := testCheckpoints(t)
			file := beginFile(t, s, 1)
			for _, step := range c.steps {
				switch step {
				case 'e':
					file.end()
				case 'g':
					file.remove()
				case 'n':
					s.begin(kv.Worker{ID: 1})
				case 's':
					s.stop()
				}
			}
			if agenttest.Exists(file.file()) != c.stays {
				t.Errorf("there: %v, want %v", !c.stays, c.stays)
			}
		})
	}
}

// Nobody waits for an engine's end when its rank has another session, when the agent stops, or
// when too many are waited for.
func TestWaitsForEnginesEndAreBounded(t *testing.T) {
	s := testCheckpoints(t)
	alive := []<-chan struct{}{make(chan struct{})}
	replaced := beginFile(t, s, 1)
	replaced.end()
	s.begin(kv.Worker{ID: 1})
	replaced.removeAfter(alive)
	var last *checkpoint
	for i := range maxCheckpoints + 1 {
		last = beginFile(t, s, kv.WorkerID(2+i))
		last.end()
	}
	last.removeAfter(alive)
	stopped := beginFile(t, s, 5000)
	s.stop()
	stopped.removeAfter(alive)
	s.begin(kv.Worker{ID: 6000}).removeAfter(alive)
	if !agenttest.Exists(replaced.file()) || !agenttest.Exists(stopped.file()) {
		t.Error("a file is gone whose engine may live")
	}
}

// An engine that was killed says no BYE, and its id may be random too.
func TestCheckpointGoesWhenAllProcessesHaveExited(t *testing.T) {
	file := beginFile(t, testCheckpoints(t), 1)
	exited := make(chan struct{})
	close(exited)
	file.removeAfter([]<-chan struct{}{exited, exited})
	if !agenttest.Exists(file.file()) {
		t.Error("it went before its rank had ended")
	}
	file.end()
	if agenttest.Exists(file.file()) {
		t.Error("it is still there")
	}
}

// What cannot be kept is said once, and counted for each rank.
func TestDirectoryThatCannotBeMadeIsWarnedOfOnce(t *testing.T) {
	core, logged := observer.New(zap.WarnLevel)
	dir := filepath.Join(t.TempDir(), "ranks")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newCheckpoints(&Config{CheckpointDir: dir}, zap.New(core))
	for range 3 {
		if c := s.begin(kv.Worker{ID: 1}); c.file() != "" {
			t.Errorf("file %q", c.file())
		}
	}
	if n := s.failed.Load(); n != 3 || logged.Len() != 1 {
		t.Errorf("%d counted, %d lines; want 3 and 1", n, logged.Len())
	}
}

// Two starts of one engine, and one start with two namespaces, must not be taken for each
// other.
func TestIdentityIsOfTheIncarnationAndTheNamespace(t *testing.T) {
	one, again, restarted, other := agenttest.Hello(1), agenttest.Hello(1), agenttest.Hello(1), agenttest.Hello(1)
	again.Engine = "the same, connected again"
	restarted.Incarnation++
	other.Namespace.Weights = "others"
	if identityOf(&one) != identityOf(&again) {
		t.Error("an engine that connects again has another identity")
	}
	if identityOf(&one) == identityOf(&restarted) || identityOf(&one) == identityOf(&other) {
		t.Error("a restart or another namespace has the same identity")
	}
}
