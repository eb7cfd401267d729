package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// mustRead reads an environment that has to be good.
func mustRead(t *testing.T, environ ...string) (Env, []string) {
	t.Helper()
	e, warnings, err := FromEnviron(environ)
	if err != nil {
		t.Fatalf("%q: %v", environ, err)
	}
	return e, warnings
}

// defaults is written out here, so that the table is checked and not repeated.
func defaults() Env {
	return Env{
		Transfer: Transfer{MaxConcurrent: 4, MaxBatch: 16},
		Leader:   Leader{InitTimeout: 30 * time.Minute, ZMQHost: "127.0.0.1", PubPort: 56001, AckPort: 56002},
		Stats:    CacheStats{MetricsPort: 6880, MaxRequests: 1000, LogInterval: 5 * time.Second},
		Events:   Events{Consolidate: true, Mode: Dedup},
		NCCL:     NCCL{MaxCTAs: 8},
	}
}

func TestEmptyEnvironmentGivesTheDefaults(t *testing.T) {
	for _, environ := range [][]string{nil, {"PATH=/bin", "HOME", "=C:"}} {
		if e, warnings := mustRead(t, environ...); e != defaults() || len(warnings) != 0 {
			t.Errorf("%q: got %+v, warnings %q", environ, e, warnings)
		}
	}
}

func TestEveryVariableReachesItsOwnField(t *testing.T) {
	cases := []struct {
		pair string
		want func(*Env)
	}{
		{"DYN_KVBM_CPU_CACHE_GB=0.5", func(e *Env) { e.Host.Bytes = 500_000_000 }},
		{"DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS= 7 ", func(e *Env) { e.Host.OverrideBlocks = 7 }},
		{"DYN_KVBM_DISK_CACHE_GB=1e3", func(e *Env) { e.Disk.Bytes = 1e12 }},
		{"DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS=4294967295", func(e *Env) { e.Disk.OverrideBlocks = maxBlocks }},
		{"DYN_KVBM_DISK_CACHE_DIR=/mnt/a=b", func(e *Env) { e.DiskFiles.Dir = "/mnt/a=b" }},
		{"DYN_KVBM_DISK_ALLOCATOR_TYPE=open-direct", func(e *Env) { e.DiskFiles.OpenDirect = true }},
		{"DYN_KVBM_DISK_DISABLE_O_DIRECT=", func(e *Env) { e.DiskFiles.DisableDirectIO = true }},
		{"DYN_KVBM_DISK_ZEROFILL_FALLBACK=please", func(e *Env) { e.DiskFiles.ZeroFill = true }},
		{"DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER=ON", func(e *Env) { e.Offload.DisableDiskFilter = true }},
		{"DYN_KVBM_HOST_OFFLOAD_PREFIX_MIN_PRIORITY=50", func(e *Env) { e.Offload.MinPriority = 50 }},
		{"DYN_KVBM_MAX_CONCURRENT_TRANSFERS=1", func(e *Env) { e.Transfer.MaxConcurrent = 1 }},
		{"DYN_KVBM_MAX_TRANSFER_BATCH_SIZE=64", func(e *Env) { e.Transfer.MaxBatch = 64 }},
		{"DYN_KVBM_DISABLE_WRITE_COMBINED=1", func(e *Env) { e.Memory.DisableWriteCombined = true }},
		{"DYN_MEMORY_DISABLE_NUMA=Yes", func(e *Env) { e.Memory.DisableNUMA = true }},
		{"DYN_KVBM_LEADER_WORKER_INIT_TIMEOUT_SECS=120", func(e *Env) { e.Leader.InitTimeout = 2 * time.Minute }},
		{"DYN_KVBM_LEADER_ZMQ_HOST=10.1.2.3", func(e *Env) { e.Leader.ZMQHost = "10.1.2.3" }},
		{"DYN_KVBM_LEADER_ZMQ_PUB_PORT=40000", func(e *Env) { e.Leader.PubPort = 40000 }},
		{"DYN_KVBM_LEADER_ZMQ_ACK_PORT=40001", func(e *Env) { e.Leader.AckPort = 40001 }},
		{"DYN_KVBM_NCCL_MLA_MODE=true", func(e *Env) { e.NCCL.MLAMode = true }},
		{"DYN_KVBM_NCCL_MAX_CTAS=16", func(e *Env) { e.NCCL.MaxCTAs = 16 }},
		{"DYN_KVBM_METRICS=true", func(e *Env) { e.Stats.Metrics = true }},
		{"DYN_KVBM_METRICS_PORT=0", func(e *Env) { e.Stats.MetricsPort = 0 }},
		{"DYN_KVBM_CACHE_STATS_MAX_REQUESTS=10", func(e *Env) { e.Stats.MaxRequests = 10 }},
		{"DYN_KVBM_CACHE_STATS_LOG_INTERVAL_SECS=0", func(e *Env) { e.Stats.LogInterval = 0 }},
		{"DYN_KVBM_ENABLE_RECORD=1", func(e *Env) { e.Stats.Record = true }},
		{"DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR=no", func(e *Env) { e.Events.Consolidate = false }},
		{"DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE=passthrough", func(e *Env) { e.Events.Mode = Passthrough }},
		{"DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE=tiered", func(e *Env) { e.Events.Mode = Tiered }},
		{"DYN_KVBM_TRTLLM_ZMQ_PORT=5557", func(e *Env) { e.Events.TRTLLMPort = 5557 }},
		{"DYN_RUNTIME_ENABLED_KVBM=1", func(e *Env) { e.Process.AttachRuntime = true }},
		{"DYN_FATBIN_PATH=k.fatbin", func(e *Env) { e.Process.FatbinPath = "k.fatbin" }},
		{"OTEL_EXPORT_ENABLED=true", func(e *Env) { e.Process.OTELExport = true }},
	}
	tested := make(map[string]bool)
	for _, c := range cases {
		want := defaults()
		c.want(&want)
		if got, _ := mustRead(t, c.pair); got != want {
			t.Errorf("%s: got %+v, want %+v", c.pair, got, want)
		}
		name, _, _ := strings.Cut(c.pair, "=")
		tested[name] = true
	}
	for _, v := range Variables() {
		if v.Status == Read && !tested[v.Name] {
			t.Errorf("%s is in the table and not in this test", v.Name)
		}
	}
}

func TestBlankValueIsNoneButForSwitches(t *testing.T) {
	for _, v := range Variables() {
		if v.Status != Read {
			continue
		}
		want := defaults()
		switch v.Name {
		case "DYN_KVBM_DISK_DISABLE_O_DIRECT":
			want.DiskFiles.DisableDirectIO = true
		case "DYN_KVBM_DISK_ZEROFILL_FALLBACK":
			want.DiskFiles.ZeroFill = true
		}
		if got, _ := mustRead(t, v.Name+"= \t"); got != want {
			t.Errorf("%s: got %+v, want %+v", v.Name, got, want)
		}
	}
}

func TestSwitchCanBeSaidToBeOff(t *testing.T) {
	for _, off := range []string{"0", "false", "FALSE", "off", "No", " 0 "} {
		if got, _ := mustRead(t, "DYN_KVBM_DISK_DISABLE_O_DIRECT="+off, "DYN_KVBM_DISK_ZEROFILL_FALLBACK="+off); got != defaults() {
			t.Errorf("%q: got %+v", off, got.DiskFiles)
		}
	}
}

func TestBadValueIsAnErrorThatNamesVariableValueAndRange(t *testing.T) {
	for pair, want := range map[string]string{
		"DYN_KVBM_CPU_CACHE_GB=100GB":                       "GB, 0 to 1000000000, decimal fractions allowed",
		"DYN_KVBM_CPU_CACHE_GB=1_0":                         "GB, 0 to 1000000000, decimal fractions allowed",
		"DYN_KVBM_CPU_CACHE_GB=0x1p4":                       "GB, 0 to 1000000000, decimal fractions allowed",
		"DYN_KVBM_CPU_CACHE_GB=-1":                          "GB, 0 to 1000000000, decimal fractions allowed",
		"DYN_KVBM_CPU_CACHE_GB=NaN":                         "GB, 0 to 1000000000, decimal fractions allowed",
		"DYN_KVBM_DISK_CACHE_GB=inf":                        "GB, 0 to 1000000000, decimal fractions allowed",
		"DYN_KVBM_DISK_CACHE_GB=1e10":                       "GB, 0 to 1000000000, decimal fractions allowed",
		"DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS=1.5":        "a whole number, 0 to 4294967295",
		"DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS=-1":        "a whole number, 0 to 4294967295",
		"DYN_KVBM_DISK_ALLOCATOR_TYPE=direct":               "default or open-direct",
		"DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER=maybe":        "1, true, on, yes, 0, false, off or no",
		"DYN_KVBM_HOST_OFFLOAD_PREFIX_MIN_PRIORITY=high":    "a whole number, 0 to 4294967295",
		"DYN_KVBM_MAX_CONCURRENT_TRANSFERS=0":               "a whole number, 1 to 1048576",
		"DYN_KVBM_LEADER_WORKER_INIT_TIMEOUT_SECS=0":        "seconds, 1 to 1000000000",
		"DYN_KVBM_LEADER_WORKER_INIT_TIMEOUT_SECS=30m":      "seconds, 1 to 1000000000",
		"DYN_KVBM_LEADER_ZMQ_PUB_PORT=0":                    "a port, 1 to 65535",
		"DYN_KVBM_LEADER_ZMQ_ACK_PORT=65536":                "a port, 1 to 65535",
		"DYN_KVBM_NCCL_MAX_CTAS=2147483648":                 "a whole number, 1 to 2147483647",
		"DYN_KVBM_METRICS_PORT=none":                        "a port, 0 to 65535",
		"DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE=deduplicated": "dedup or passthrough or tiered",
	} {
		name, value, _ := strings.Cut(pair, "=")
		e, warnings, err := FromEnviron([]string{pair})
		if message := fmt.Sprintf("%s %q: want %s", name, value, want); err == nil || err.Error() != message {
			t.Errorf("got error %v, want %s", err, message)
		}
		if e != (Env{}) || warnings != nil {
			t.Errorf("%s: an error came with %+v, %q", pair, e, warnings)
		}
	}
}

func TestAllBadVariablesAreReportedAtOnce(t *testing.T) {
	_, _, err := FromEnviron([]string{"DYN_KVBM_METRICS=perhaps", "DYN_KVBM_CPU_CACHE_GB=much"})
	for _, name := range []string{"DYN_KVBM_METRICS", "DYN_KVBM_CPU_CACHE_GB"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not in %v", name, err)
		}
	}
}

func TestFirstOfTwoCountsAsInTheProcess(t *testing.T) {
	if e, _ := mustRead(t, "DYN_KVBM_METRICS_PORT=1", "DYN_KVBM_METRICS_PORT=2"); e.Stats.MetricsPort != 1 {
		t.Errorf("port %d, want 1", e.Stats.MetricsPort)
	}
}

func TestNamesWithoutEffectAreWarnings(t *testing.T) {
	e, warnings := mustRead(t,
		"DYN_KVBM_ZZZ=1", "DYN_KVBM_CPU_CACHE_GIB=1", "DYN_OTHER=1",
		"DYN_KVBM_NIXL_BACKEND_UCX=1", "DYN_KVBM_NIXL_BACKEND_GDS_MT=0",
		"DYN_KVBM_OBJECT_SECRET_KEY=hunter2", "DYN_KVBM_ENABLE_NUMA=",
		"DYN_KVBM_TRANSFER_BATCH_SIZE=4", "DYN_KVBM_ENABLE=true")
	var names []string
	for _, w := range warnings {
		name, rest, _ := strings.Cut(w, " is ")
		status, _, _ := strings.Cut(rest, " ")
		names = append(names, name+" "+strings.TrimSuffix(status, ":"))
		if strings.Contains(w, "hunter2") {
			t.Errorf("a secret in a warning: %s", w)
		}
	}
	want := []string{
		"DYN_KVBM_ENABLE_NUMA deprecated", "DYN_KVBM_OBJECT_SECRET_KEY ignored", "DYN_KVBM_TRANSFER_BATCH_SIZE ignored",
		"DYN_KVBM_ENABLE ignored", "DYN_KVBM_NIXL_BACKEND_GDS_MT ignored", "DYN_KVBM_NIXL_BACKEND_UCX ignored",
		"DYN_KVBM_CPU_CACHE_GIB unknown", "DYN_KVBM_ZZZ unknown",
	}
	if !slices.Equal(names, want) {
		t.Errorf("got %q\nwant %q", names, want)
	}
	if e != defaults() {
		t.Errorf("got %+v", e)
	}
}

func TestValuesThatAreProbablyNotMeantAreWarnings(t *testing.T) {
	_, warnings := mustRead(t, "DYN_KVBM_METRICS=1", "DYN_KVBM_METRICS_PORT=80", "DYN_KVBM_HOST_OFFLOAD_PREFIX_MIN_PRIORITY=1")
	want := []string{
		"DYN_KVBM_METRICS_PORT 80: ports below 1024 need privileges",
		"DYN_KVBM_HOST_OFFLOAD_PREFIX_MIN_PRIORITY 1: an engine that reports no priorities, such as vLLM, offloads nothing",
	}
	if !slices.Equal(warnings, want) {
		t.Errorf("got %q\nwant %q", warnings, want)
	}
	if _, warnings := mustRead(t, "DYN_KVBM_METRICS_PORT=80"); len(warnings) != 0 {
		t.Errorf("a port that is not bound is warned of: %q", warnings)
	}
}

func TestVariablesThatTheAgentDoesNothingWithAreReportedWhenTheyAreSet(t *testing.T) {
	values := map[string]string{"DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE": "dedup", "DYN_KVBM_LEADER_ZMQ_HOST": "leader", "DYN_FATBIN_PATH": "k.fatbin"}
	for _, v := range Variables() {
		if v.Status != Read || v.Used {
			continue
		}
		value := cmp.Or(values[v.Name], "1")
		_, warnings := mustRead(t, v.Name+"="+value)
		if want := v.Name + " has no effect in the agent: "; len(warnings) != 1 || !strings.HasPrefix(warnings[0], want) {
			t.Errorf("%s: warnings %q", v.Name, warnings)
		}
		if _, warnings := mustRead(t, v.Name+"= "); len(warnings) != 0 {
			t.Errorf("%s is blank: warnings %q", v.Name, warnings)
		}
	}
}

func TestGivenTellsAChosenValueFromADefault(t *testing.T) {
	got := Given([]string{
		"DYN_KVBM_METRICS_PORT=6880", "DYN_KVBM_CPU_CACHE_GB=0", "DYN_KVBM_DISK_CACHE_GB= ", "DYN_KVBM_DISK_DISABLE_O_DIRECT=",
		"DYN_KVBM_LEADER_ZMQ_HOST=x", "DYN_KVBM_ENABLE=1", "DYN_KVBM_ZZZ=1", "PATH=/bin",
	})
	want := []string{"DYN_KVBM_CPU_CACHE_GB", "DYN_KVBM_DISK_DISABLE_O_DIRECT", "DYN_KVBM_LEADER_ZMQ_HOST", "DYN_KVBM_METRICS_PORT"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Given(nil); got != nil {
		t.Errorf("got %q of nothing", got)
	}
}
