package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestWorkerFlagsJoinAgentsAndFile: both lists of agents are followed, and a bad value
// names its place.
func TestWorkerFlagsJoinAgentsAndFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workers.json")
	if err := os.WriteFile(file, []byte(`{"agents":["http://127.0.0.1:2"],"workers":[{"worker_id":5,"model":"m","block_size":16}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	f := workerFlags{Agents: []string{"http://127.0.0.1:1"}, WorkersFile: file}
	if none := (&workerFlags{}); none.sources() || !f.sources() {
		t.Error("what counts as a source of workers is wrong")
	}
	joined, closeAll, err := f.join(zap.NewNop(), nil)
	if err != nil {
		t.Fatal(err)
	}
	agents := joined.Agents()
	if len(agents) != 2 || agents[0].URL != "http://127.0.0.1:1" || agents[1].URL != "http://127.0.0.1:2" {
		t.Errorf("agents %+v", agents)
	}
	if s := joined.RegistryStats(); s.FromFile != 1 {
		t.Errorf("stats %+v", s)
	}
	if err := closeAll(); err != nil {
		t.Error(err)
	}
	for want, f := range map[string]workerFlags{
		"agents[0]":    {Agents: []string{"node-1:9400"}},
		"workers file": {WorkersFile: file + ".none"},
	} {
		if _, _, err := f.join(zap.NewNop(), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
