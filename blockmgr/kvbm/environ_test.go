package kvbm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/blockmgr/config"
)

// embedded returns what a program sets itself beside the environment: two ranks of 1 KiB a block.
func embedded(t *testing.T) (config.Config, Place) {
	t.Helper()
	cfg, place := both(t, 1)
	cfg.HostLayout, cfg.DiskLayout, place.TP = nil, nil, 2
	return cfg, place
}

func TestEnvironmentSizesTheTiersAndNamesTheConsolidator(t *testing.T) {
	cfg, place := embedded(t)
	events := &consolidator{}
	var got Consolidation
	place.Consolidate = func(c Consolidation) (Consolidator, error) {
		got = c
		return events, nil
	}
	logs, observed := observer.New(zap.WarnLevel)
	place.Log = zap.New(logs)
	dir := t.TempDir()
	m, err := NewFromEnviron(t.Context(), []string{
		"DYN_KVBM_CPU_CACHE_GB=0.00002048", "DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS=7", "DYN_KVBM_DISK_CACHE_DIR=" + dir,
		"DYN_KVBM_LEADER_ZMQ_PUB_PORT=4000", "DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE=tiered", "DYN_KVBM_MISSPELLED=1",
	}, Engine{Kind: "vllm", Events: "tcp://*:5557"}, cfg, place)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, m)
	st := m.Pool().Stats()
	if st.Host.Capacity != 10 || st.Disk.Capacity != 7 {
		t.Errorf("%d host and %d disk blocks: want 20480 B of 2 KiB blocks, and 7", st.Host.Capacity, st.Disk.Capacity)
	}
	if m.Sharding().Ranks() != 2 {
		t.Errorf("a slot holds the parts of %d ranks, want 2", m.Sharding().Ranks())
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) == 0 {
		t.Errorf("the variable's directory has %d files, %v", len(files), err)
	}
	want := config.Consolidator{
		EngineEventEndpoint: "tcp://127.0.0.1:5557", ConsolidatedEventEndpoint: "tcp://0.0.0.0:5000",
		EngineSource: config.SourceVLLM, Mode: config.Tiered,
	}
	if got.Consolidator != want {
		t.Errorf("consolidator %+v, want %+v", got.Consolidator, want)
	}
	if n := observed.FilterField(zap.String("warning", "DYN_KVBM_MISSPELLED is unknown and has no effect")).Len(); n != 1 {
		t.Errorf("%d warnings of the unknown variable, want 1", n)
	}
}

// The place's directory counts without a variable. A block that is stored once passes to disk
// only when the filter is off.
func TestEnvironmentTurnsFilterAndConsolidatorOff(t *testing.T) {
	for _, c := range []struct {
		filter  string
		written uint64
	}{{"DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER=0", 0}, {"DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER=1", 1}} {
		t.Run(c.filter, func(t *testing.T) {
			cfg, place := embedded(t)
			place.Consolidate = func(Consolidation) (Consolidator, error) {
				t.Error("a consolidator was started")
				return &consolidator{}, nil
			}
			m, err := NewFromEnviron(t.Context(), []string{
				"DYN_KVBM_CPU_CACHE_GB=1e-4", "DYN_KVBM_DISK_CACHE_GB=1e-4", "DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR=false", c.filter,
			}, Engine{Kind: "vllm", Events: "tcp://127.0.0.1:5557"}, cfg, place)
			if err != nil {
				t.Fatal(err)
			}
			client := begin(t, m)
			client.add(1, client.sequence(1, 1))
			if got := m.Pool().Stats().WriteBehind; got != c.written {
				t.Errorf("%d blocks were written to disk, want %d", got, c.written)
			}
			if files, err := filepath.Glob(filepath.Join(place.Disk.Dir, "*")); err != nil || len(files) == 0 {
				t.Errorf("the place's directory has %d files, %v", len(files), err)
			}
		})
	}
}

func TestBadEnvironmentIsAnErrorThatNamesTheVariableAndLeavesNothing(t *testing.T) {
	host := "DYN_KVBM_CPU_CACHE_GB=1"
	for _, c := range []struct {
		environ []string
		engine  Engine
		want    string
	}{
		{nil, Engine{}, "DYN_KVBM_CPU_CACHE_GB"},
		{[]string{"DYN_KVBM_CPU_CACHE_GB=much"}, Engine{}, "DYN_KVBM_CPU_CACHE_GB"},
		{[]string{"DYN_KVBM_DISK_CACHE_GB=1e-9"}, Engine{}, "DYN_KVBM_DISK_CACHE_GB"},
		{[]string{host}, Engine{Kind: "sglang", Events: "tcp://127.0.0.1:5557"}, "sglang"},
		{[]string{host}, Engine{Kind: "trtllm"}, "DYN_KVBM_TRTLLM_ZMQ_PORT"},
	} {
		cfg, place := embedded(t)
		_, err := NewFromEnviron(t.Context(), c.environ, c.engine, cfg, place)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q with %+v: error %v, want one that names %s", c.environ, c.engine, err, c.want)
		}
		if files, _ := filepath.Glob(filepath.Join(place.HostDir, "*")); len(files) != 0 {
			t.Errorf("%q with %+v leaves %q", c.environ, c.engine, files)
		}
	}
}
