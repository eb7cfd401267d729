package command

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/router/config"
)

// routerModel parses args for the router command alone.
func routerModel(t *testing.T, args ...string) (*Router, *kong.Kong, error) {
	t.Helper()
	c := NewRouter()
	k, err := kong.New(&c, routerDefaults(), kong.Name("router"), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.Parse(args)
	return &c, k, err
}

// settle returns the router command for args that must be good.
func settle(t *testing.T, args ...string) *Router {
	t.Helper()
	c, _, err := routerModel(t, args...)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return c
}

// withoutSettings clears the variables of all settings, and that of the document.
func withoutSettings(t *testing.T) {
	t.Helper()
	t.Setenv("BLOCKYARD_ROUTER_CONFIG", "")
	for _, s := range config.Settings() {
		for _, name := range s.Env {
			t.Setenv(name, "")
		}
	}
}

// TestEverySettingHasItsFlags: the command line has exactly the flags, aliases,
// variables, defaults and groups of the table, and hides what is not there yet.
func TestEverySettingHasItsFlags(t *testing.T) {
	withoutSettings(t)
	_, k, err := routerModel(t)
	if err != nil {
		t.Fatal(err)
	}
	flags := make(map[string]*kong.Flag)
	for _, f := range k.Model.Flags {
		flags[f.Name] = f
	}
	want := config.CommandDefault()
	for _, s := range config.Settings() {
		later := s.Group == config.GroupLater
		for i, name := range s.Flags {
			f := flags[name]
			if f == nil {
				f = flags[s.Flags[0]]
				if s.Switch() || f == nil || !slices.Contains(f.Aliases, name) {
					t.Errorf("%s: no flag --%s", s.Name, name)
				}
				continue
			}
			if negatable := f.Tag.Negatable != ""; negatable != s.Switch() {
				t.Errorf("--%s: negatable %v, switch %v", name, negatable, s.Switch())
			}
			if hidden := later || i > 0; f.Hidden != hidden {
				t.Errorf("--%s: hidden %v, want %v", name, f.Hidden, hidden)
			}
			if i > 0 || later {
				continue
			}
			if f.Group == nil || f.Group.Key != s.Group || !slices.Equal(f.Tag.Envs, s.Env) {
				t.Errorf("--%s: group %v, variables %q; want %s, %q", name, f.Group, f.Tag.Envs, s.Group, s.Env)
			}
			usual := s.Text(&want)
			if s.Optional() { // the help says what no value means
				usual = ""
			}
			if s.Name != "index_memory_bytes" && (f.Tag.Default != usual || usual == "" && !strings.Contains(f.Help, " Default: ")) {
				t.Errorf("--%s: default %q, want %q; help %q", name, f.Tag.Default, usual, f.Help)
			}
			if len(f.Aliases)+1 != len(s.Flags) && !s.Switch() {
				t.Errorf("--%s: aliases %q, want %q", name, f.Aliases, s.Flags[1:])
			}
		}
	}
}

// TestFlagsVariablesAndDocumentAreLayered: a flag wins over a variable, that over
// the document, and older names do what the new ones do.
func TestFlagsVariablesAndDocumentAreLayered(t *testing.T) {
	withoutSettings(t)
	file := filepath.Join(t.TempDir(), "router.json")
	if err := os.WriteFile(file, []byte(`{"router_temperature":0.1,"host_cache_hit_weight":0.2,"seed":3}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DYN_ROUTER_TEMPERATURE", "0.4")
	t.Setenv("DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", "0.5")
	c := settle(t, "--router-config", file, "--router-temperature=0.7", "--overlap-score-credit", "2", "--no-kv-events", "--router-ttl", "9", "--index-memory=1GiB", "--first-of-equal")
	s := &c.settings
	if s.RouterTemperature != 0.7 || s.HostCacheHitWeight != 0.5 || s.Seed != 3 || s.OverlapScoreCredit != 2 ||
		s.UseKVEvents || s.RouterTTLSecs != 9 || s.IndexMemoryBytes != 1<<30 || !s.FirstOfEqual {
		t.Errorf("got %+v", s.Config)
	}
	if s.SharedCacheMultiplier != 0.5 {
		t.Errorf("shared cache multiplier %v, want the command's default", s.SharedCacheMultiplier)
	}
	o := settle(t, "--router-snapshot-threshold=0", "--durable-kv-events", "--router-reset-states").options("", zap.NewNop())
	if o.SnapshotThreshold != -1 || !o.ResetStates {
		t.Errorf("options %+v", o)
	}
}

// TestSwitchesTakeEveryForm: a switch can be given alone, with a value, and negated
// by each of its names; the last of one name counts.
func TestSwitchesTakeEveryForm(t *testing.T) {
	withoutSettings(t)
	for args, want := range map[string]bool{
		"": true, "--router-kv-events": true, "--kv-events": true, "--kv-events=off": false, "--no-kv-events": false,
		"--no-router-kv-events": false, "--no-router-kv-events --router-kv-events": true,
		"--no-kv-events --no-router-kv-events": false, "--router-kv-events=true": true,
		"--router-ttl=5 --router-ttl 6 --router-ttl-secs=6.0 --no-kv-events --kv-events --router-kv-events": true,
	} {
		if c := settle(t, strings.Fields(args)...); c.settings.UseKVEvents != want {
			t.Errorf("%s: %v", args, c.settings.UseKVEvents)
		}
	}
}

// TestWrongSettingIsAnErrorOfUsage: what is wrong is named as it was given.
func TestWrongSettingIsAnErrorOfUsage(t *testing.T) {
	withoutSettings(t)
	file := filepath.Join(t.TempDir(), "router.json")
	if err := os.WriteFile(file, []byte(`{"router_temprature":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string]string{
		`--router-temperature "-1": want a number, 0 to 1000000`:                                                                                   "--router-temperature=-1",
		`--router-kv-events "maybe": want true or false`:                                                                                           "--router-kv-events=maybe",
		`--kv-events "true": contradicts --router-kv-events "false", which is another name for it`:                                                 "--kv-events --no-router-kv-events",
		`--router-ttl "5": contradicts --router-ttl-secs "9", which is another name for it`:                                                        "--router-ttl 5 --router-ttl-secs 9",
		`--block-size "32": contradicts --kv-cache-block-size "16", which is another name for it`:                                                  "--kv-cache-block-size=16 --block-size=32",
		`router_prefill_load_model "aic": not yet; want none; only an embedding program can supply a model`:                                        "--router-prefill-load-model=aic",
		`--router-kv-events "true": contradicts load_aware (--load-aware), which sets use_kv_events to false`:                                      "--load-aware --router-kv-events",
		file + `: "router_temprature": no such field`:                                                                                              "--router-config=" + file,
		"--router-config: open " + file + ".none: no such file or directory":                                                                       "--router-config=" + file + ".none",
		`conditional_disagg_config (--router-conditional-disagg-config) "{}": needs conditional_disagg_enabled`:                                    "--router-conditional-disagg-config={}",
		`shared_cache_type (--shared-cache-type) "hicache": not yet; want none or http`:                                                            "--shared-cache-type=hicache",
		`router_mode (--router-mode) "device-aware-weighted": not yet; want kv or round-robin or random or power-of-two or least-loaded or direct`: "--mode=device-aware-weighted",
		`router_worker_selection_policy (--router-worker-selection-policy) "mine": not yet; want none or default`:                                  "--router-worker-selection-policy=mine",
		`router_tracking_hash (--router-tracking-hash) "keyed-xxh3-v1": needs router_tracking_key_file and router_tracking_key_id`:                 "--router-tracking-hash=keyed-xxh3-v1",
	} {
		var out, errs strings.Builder
		status := Product("").Run(t.Context(), append([]string{"router"}, strings.Fields(args)...), &out, &errs)
		if got := fmt.Sprintf("blockyard: %s\n", want); status != ExitUsage || errs.String() != got {
			t.Errorf("%s: status %d, %s, want %s", args, status, errs.String(), got)
		}
	}
	t.Setenv("DYN_ROUTER_TTL_SECS", "soon")
	if _, _, err := routerModel(t); err == nil || err.Error() != `DYN_ROUTER_TTL_SECS "soon": want a number, 0 to 1000000000` {
		t.Errorf("error %v", err)
	}
}

// The front door opens for http_port or for worker servers, on port 8000 of all addresses
// unless the settings say otherwise.
func TestDoorAddress(t *testing.T) {
	withoutSettings(t)
	for _, tc := range []struct {
		args, port, host string
		servers          bool
		want             string
	}{
		{want: "closed"},
		{servers: true, want: "0.0.0.0:8000"},
		{args: "--http-port=80", want: "0.0.0.0:80"},
		{port: "8001", want: "0.0.0.0:8001"},
		{args: "--http-port=80", port: "8001", host: "::", want: "[::]:80"},
		{args: "--http-host=10.0.0.1", servers: true, host: "::", want: "10.0.0.1:8000"},
		{host: "10.0.0.1", want: "closed"},
	} {
		t.Setenv("DYN_HTTP_PORT", tc.port)
		t.Setenv("DYN_HTTP_HOST", tc.host)
		c := settle(t, strings.Fields(tc.args)...)
		got, open := c.settings.doorAddress(tc.servers)
		if !open {
			got = "closed"
		}
		if got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}

// TestEffectiveSettingsAreLogged: one line has what is not as by default, with where
// each comes from, whichever way it came, and no password.
func TestEffectiveSettingsAreLogged(t *testing.T) {
	withoutSettings(t)
	file := filepath.Join(t.TempDir(), "router.json")
	if err := os.WriteFile(file, []byte(`{"seed":3,"shared_cache_type":"http","router_ttl_secs":120}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DYN_ROUTER_TEMPERATURE", "0.4")
	t.Setenv("DYN_KV_OVERLAP_SCORE_WEIGHT", "0")
	t.Setenv("BLOCKYARD_ROUTER_EAGLE", "1")
	logged := func(args ...string) map[string]any {
		t.Helper()
		core, logs := observer.New(zap.InfoLevel)
		settle(t, args...).settings.log(zap.New(core))
		lines := logs.FilterMessage("configuration").All()
		if len(lines) != 1 {
			t.Fatalf("%d lines", len(lines))
		}
		return lines[0].ContextMap()
	}
	want := map[string]any{
		"seed": "3 (" + file + " seed)", "shared_cache_type": "http (" + file + " shared_cache_type)",
		"shared_cache_url":   "http://u:xxxxx@host/x (--shared-cache-url)",
		"router_temperature": "0.4 (DYN_ROUTER_TEMPERATURE)", "is_eagle": "true (BLOCKYARD_ROUTER_EAGLE)",
		"overlap_score_weight": "0 (DYN_KV_OVERLAP_SCORE_WEIGHT)",
		"prefill_load_scale":   "0 (overlap_score_weight)", "overlap_score_credit": "0 (overlap_score_weight)",
	}
	if got := logged("--router-config", file, "--shared-cache-url=http://u:secret@host/x"); !maps.Equal(got, want) {
		t.Errorf("logged %v,\nwant %v", got, want)
	}
	if got := logged("--load-aware"); got["use_kv_events"] != "false (load_aware)" || got["load_aware"] != "true (--load-aware)" {
		t.Errorf("logged %v", got)
	}
}

// TestDeprecatedSettingsAreLogged: what is old or idle is said once.
func TestDeprecatedSettingsAreLogged(t *testing.T) {
	withoutSettings(t)
	core, logs := observer.New(zap.WarnLevel)
	settle(t, "--durable-kv-events", "--router-event-threads=1", "--kv-overlap-score-weight=2").settings.log(zap.New(core))
	var got []string
	for _, e := range logs.All() {
		got = append(got, e.Message)
	}
	want := []string{
		"setting overlap_score_weight is deprecated: it sets prefill_load_scale to 2",
		"setting durable_kv_events is deprecated: Dynamo has removed it, Blockyard still supports it",
		"setting router_event_threads 1 has no effect: one writer keeps up, and readers do not wait for it",
	}
	if !slices.Equal(got, want) {
		t.Errorf("logged %q, want %q", got, want)
	}
	settle(t, "--router-reset-states").settings.log(zap.New(core))
	if last := logs.All()[logs.Len()-1].Message; last != "setting router_reset_states true has no effect: durable_kv_events is off, and nothing is stored" {
		t.Errorf("logged %q", last)
	}
}
