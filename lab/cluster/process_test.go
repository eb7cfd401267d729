package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func testRig(t *testing.T) *Rig {
	t.Helper()
	dir := t.TempDir()
	r, err := New(Options{Programs: Programs{"/nowhere", "/nowhere"}, NATSServer: "/nowhere", Name: "test", Dir: dir, HostDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Close leaves no process and, unless they are wanted, no file.
func TestCloseEndsProcessesAndRemovesFiles(t *testing.T) {
	for _, keep := range []bool{false, true} {
		r := testRig(t)
		p, err := r.Start("sleeper", []string{"sleep", "1000"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.Stop() // a stopped child ends too
		pid := p.cmd.Process.Pid
		if err := r.Close(keep); err != nil {
			t.Error(err)
		}
		if !p.Exited() || syscall.Kill(pid, 0) == nil {
			t.Errorf("the child %d is still there", pid)
		}
		left, err := filepath.Glob(filepath.Join(filepath.Dir(r.dir), "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		if keep != (len(left) > 0) {
			t.Errorf("logs kept: %t; left: %q", keep, left)
		}
	}
}

func TestAskExchangesLines(t *testing.T) {
	r := testRig(t)
	defer r.Close(false)
	p, err := r.Start("cat", []string{"cat"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 2} {
		var got struct{ N int }
		if err := p.Ask(t.Context(), map[string]int{"N": want}, &got); err != nil || got.N != want {
			t.Errorf("got %d, %v; want %d", got.N, err, want)
		}
	}
}

// Whoever waits for a line hears why none will come.
func TestNextTellsWhyThereIsNoLine(t *testing.T) {
	r := testRig(t)
	defer r.Close(false)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for _, c := range []struct {
		ctx     context.Context
		command []string
		want    string
	}{
		{t.Context(), []string{"false"}, "it ended: exit status 1"},
		{t.Context(), []string{"echo", "hello"}, `line "hello`},
		{short, []string{"cat"}, "deadline"},
	} {
		p, err := r.Start("child", c.command, nil)
		if err != nil {
			t.Fatal(err)
		}
		var v struct{}
		if err := p.Next(c.ctx, &v); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.command, err, c.want)
		}
	}
}

// A child must not be configured by the environment of whoever runs the rig.
func TestChildrenGetNoneOfOurVariables(t *testing.T) {
	got := childEnv([]string{"PATH=/bin", "BLOCKYARD_NATS=x", "DYN_X=1", "NATS_SERVER=y", "BLOCKYARD_LOG_LEVEL=debug"})
	if want := "PATH=/bin BLOCKYARD_LOG_LEVEL=debug"; strings.Join(got, " ") != want {
		t.Errorf("environment %q, want %q", got, want)
	}
}

// The router's user alone can be kept from asking.
func TestBlindRouterMayNotAsk(t *testing.T) {
	r := testRig(t)
	defer r.Close(false)
	deny := `deny: ["blockyard.` + r.Cluster() + `.kv-query.>"]`
	if strings.Contains(r.brokerConfig(), "deny") {
		t.Errorf("a router that may ask is denied something:\n%s", r.brokerConfig())
	}
	r.o.BlindRouter = true
	agent, router, _ := strings.Cut(r.brokerConfig(), `{user: "router"`)
	if strings.Contains(agent, "deny") || !strings.Contains(router, deny) {
		t.Errorf("configuration:\n%s", r.brokerConfig())
	}
}

func TestNewRefusesDirectoriesThatAreNotThere(t *testing.T) {
	for _, o := range []Options{{Dir: "/nowhere"}, {Dir: t.TempDir(), HostDir: "/nowhere"}} {
		r, err := New(o)
		if err == nil || !strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("%+v: %v", o, err)
		}
		if r != nil {
			t.Errorf("%+v: a rig in spite of the error", o)
		}
		if o.Dir != "/nowhere" {
			if left, err := os.ReadDir(o.Dir); err != nil || len(left) != 0 {
				t.Errorf("%+v: left %v, %v", o, left, err)
			}
		}
	}
}
