package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func testCluster(t *testing.T) *Cluster {
	t.Helper()
	dir := t.TempDir()
	c := New(Options{Programs: Programs{"/nowhere", "/nowhere"}, NATSServer: "/nowhere", Dirs: &Dirs{Work: dir, Host: dir, Logs: dir}})
	t.Cleanup(func() { c.Close(0) })
	return c
}

func TestAskExchangesLines(t *testing.T) {
	p, err := testCluster(t).Start(Spec{Name: "cat", Command: []string{"cat"}})
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
	c := testCluster(t)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for _, want := range []struct {
		ctx     context.Context
		command []string
		text    string
	}{
		{t.Context(), []string{"false"}, "it ended: exit status 1"},
		{t.Context(), []string{"echo", "hello"}, `line "hello`},
		{short, []string{"cat"}, "deadline"},
	} {
		p, err := c.Start(Spec{Name: "child", Command: want.command})
		if err != nil {
			t.Fatal(err)
		}
		var v struct{}
		if err := p.Next(want.ctx, &v); err == nil || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%q: %v; want %q", want.command, err, want.text)
		}
	}
}

// The router's user alone can be kept from asking.
func TestBlindRouterMayNotAsk(t *testing.T) {
	c := testCluster(t)
	deny := `deny: ["blockyard.` + c.o.Name + `.kv-query.>"]`
	if strings.Contains(c.natsConfig(), "deny") {
		t.Errorf("a router that may ask is denied something:\n%s", c.natsConfig())
	}
	c.o.BlindRouter = true
	agent, router, _ := strings.Cut(c.natsConfig(), `{user: "router"`)
	if strings.Contains(agent, "deny") || !strings.Contains(router, deny) {
		t.Errorf("configuration:\n%s", c.natsConfig())
	}
}

func TestDirectoriesThatAreNotThereAreRefused(t *testing.T) {
	parent := t.TempDir()
	for _, c := range [][2]string{{"/nowhere", ""}, {parent, "/nowhere"}} {
		if d, err := MakeDirs("test", c[0], c[1], 0); d != nil || err == nil || !strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("%q: %v, %v", c, d, err)
		}
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestRemoveLeavesTheLogsIfTheyAreKept(t *testing.T) {
	for _, keep := range []bool{false, true} {
		parent := t.TempDir()
		d, err := MakeDirs("test", parent, parent, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{filepath.Join(d.Logs, "agent.log"), filepath.Join(d.Work, "agent.sock"), filepath.Join(d.Host, "extent")} {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Remove(keep); err != nil {
			t.Error(err)
		}
		left, err := filepath.Glob(filepath.Join(parent, "*", "*"))
		if err != nil || keep != (len(left) == 1) {
			t.Errorf("logs kept: %t; left: %q, %v", keep, left, err)
		}
	}
}

func TestSweepRemovesWhatAKilledScenarioLeftAndNothingElse(t *testing.T) {
	root := t.TempDir()
	live, lock, err := claim(root, "demo")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	left, other := filepath.Join(root, hostPrefix("demo")+"1"), filepath.Join(root, "other")
	for _, dir := range []string{filepath.Join(left, "ours", "node-1"), other} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	sweep(root, "demo")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 || entries[0].Name() != filepath.Base(live) || entries[1].Name() != "other" {
		t.Errorf("after the sweep: %v", entries)
	}
}

func TestHostTierFallsBackToTheWorkDirectory(t *testing.T) {
	const moreThanAnyMemory = 1 << 62
	d, err := MakeDirs("test", t.TempDir(), "", moreThanAnyMemory)
	if err != nil {
		t.Fatal(err)
	}
	if d.InMemory() || d.Host != filepath.Join(d.Work, "host") {
		t.Errorf("host directory %s", d.Host)
	}
}
