package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// loadFrom is Resolve without the sources of the values.
func loadFrom(from Sources) (Config, []Notice, error) {
	loaded, err := Resolve(from)
	if err != nil {
		return Config{}, nil, err
	}
	return loaded.Config, loaded.Notices, nil
}

// parseJSON returns Default with the settings of a document.
func parseJSON(document []byte) (Config, error) {
	return applied(func(l *layers) error { return l.document("", document) })
}

// fromEnviron returns Default with the settings of an environment.
func fromEnviron(environ []string) (Config, error) {
	return applied(func(l *layers) error { return l.environ(environ, nil) })
}

// applied returns Default with the settings of one source.
func applied(source func(*layers) error) (Config, error) {
	c := Default()
	l := newLayers(&c)
	if err := source(l); err != nil {
		return Config{}, err
	}
	if err := l.loadAware(); err != nil {
		return Config{}, err
	}
	l.tune()
	return c, nil
}

// jsonOf is a value, as a flag has it, as a document has it.
func jsonOf(s *Setting, value string) string {
	switch s.at(new(Config)).(type) {
	case *string, **string:
		if value != "none" || s.domain.words != nil {
			return fmt.Sprintf("%q", value)
		}
	}
	if value == "none" {
		return "null"
	}
	return value
}

// TestEverySettingIsReachedEveryWay: a document, each variable and each flag give
// the same configuration, and it differs from the default in that one place.
func TestEverySettingIsReachedEveryWay(t *testing.T) {
	for _, l := range limits {
		s := find(Settings(), l.name)
		value := strings.Fields(l.good)[0]
		if value == l.def {
			value = strings.Fields(l.good)[1]
		}
		want := Default()
		s.domain.set(s.at(&want), value)
		if cmp.Equal(want, Default()) || s.Text(&want) == l.def {
			t.Fatalf("%s %s is the default", l.name, value)
		}
		switch l.name {
		case "overlap_score_weight":
			want.applyWeight()
		case "load_aware":
			want.OverlapScoreCredit, want.UseKVEvents, want.RouterAssumeKVReuse = 0, false, false
		case "score_weights":
			want.PrefillLoadScale, want.HostCacheHitWeight, want.DiskCacheHitWeight = 8, 0.95, 0.5
		}
		got, err := parseJSON(fmt.Appendf(nil, "{%q: %s}", l.name, jsonOf(s, value)))
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s in a document: %v, %s", l.name, err, cmp.Diff(want, got))
		}
		for _, name := range s.Env {
			if got, err := fromEnviron([]string{name + "= " + value + " "}); err != nil || !cmp.Equal(got, want) {
				t.Errorf("%s: %v, %s", name, err, cmp.Diff(want, got))
			}
		}
		got = Default()
		layers := newLayers(&got)
		if err := layers.flags(map[string]string{s.Flags[0]: value}); err != nil {
			t.Errorf("--%s: %v", s.Flags[0], err)
		}
		err = layers.loadAware()
		layers.tune()
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("--%s: %v, %s", s.Flags[0], err, cmp.Diff(want, got))
		}
	}
}

// TestOlderNameOfThePrefillLoadScale has the values that Dynamo's own conversion
// gives.
func TestOlderNameOfThePrefillLoadScale(t *testing.T) {
	for _, tc := range []struct {
		document      string
		credit, scale float64
	}{
		{`{"overlap_score_weight":2.5}`, 1, 2.5},
		{`{"overlap_score_weight":0}`, 0, 0},
		{`{"overlap_score_weight":2.5,"overlap_score_credit":0.5,"prefill_load_scale":3}`, 0.5, 2.5},
		{`{"overlap_score_credit":0.5,"prefill_load_scale":3,"overlap_score_weight":0}`, 0, 0},
		{`{"overlap_score_weight":null,"prefill_load_scale":3}`, 1, 3},
	} {
		c := read(t, tc.document)
		s := c.Schedule()
		if c.OverlapScoreCredit != tc.credit || c.PrefillLoadScale != tc.scale || s.OverlapCredit != tc.credit || s.PrefillLoadScale != tc.scale || s.OverlapWeight != tc.scale {
			t.Errorf("%s: credit %v scale %v, scheduled %+v", tc.document, c.OverlapScoreCredit, c.PrefillLoadScale, s)
		}
		var o Override
		if err := json.Unmarshal([]byte(tc.document), &o); err != nil {
			t.Fatal(err)
		}
		over := o.Schedule()
		if over.PrefillLoadScale == nil || *over.PrefillLoadScale != tc.scale || over.OverlapCredit != nil && *over.OverlapCredit != tc.credit || over.OverlapCredit == nil && tc.credit != 1 {
			t.Errorf("%s as an override: %+v", tc.document, over)
		}
	}
	// A struct that no reader has converted means the same.
	w := 0.0
	c := Default()
	c.OverlapScoreWeight = &w
	if s := c.Schedule(); s.OverlapCredit != 0 || s.PrefillLoadScale != 0 || c.ShouldSubscribeToKVEvents() {
		t.Errorf("scheduled %+v", s)
	}
}

// TestStrongerSourceWinsOverAnOlderName: the older name of a setting wins in its
// own source only.
func TestStrongerSourceWinsOverAnOlderName(t *testing.T) {
	document := []byte(`{"overlap_score_weight":0}`)
	for _, tc := range []struct {
		environ []string
		flags   map[string]string
		credit  float64
		scale   float64
		notices int
	}{
		{nil, nil, 0, 0, 1},
		{[]string{"DYN_ROUTER_PREFILL_LOAD_SCALE=3"}, nil, 1, 3, 1},
		{[]string{"DYN_KV_OVERLAP_SCORE_WEIGHT=2"}, nil, 1, 2, 1},
		{[]string{"DYN_KV_OVERLAP_SCORE_WEIGHT=2"}, map[string]string{"router-prefill-load-scale": "4", "router-kv-overlap-score-credit": "1"}, 1, 4, 1},
		{[]string{"DYN_KV_OVERLAP_SCORE_WEIGHT=2.5"}, map[string]string{"router-kv-overlap-score-credit": "0.5"}, 0.5, 2.5, 1},
		{nil, map[string]string{"router-kv-overlap-score-credit": "0.5"}, 0.5, 0, 1},
		{[]string{"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT=0.5"}, map[string]string{"router-kv-overlap-score-weight": "0"}, 0, 0, 1},
		{[]string{"DYN_ROUTER_PREFILL_LOAD_SCALE=3"}, map[string]string{"router-kv-overlap-score-weight": "5"}, 1, 5, 1},
	} {
		c, notices, err := loadFrom(Sources{Document: document, Environ: tc.environ, Flags: tc.flags})
		if err != nil || c.OverlapScoreCredit != tc.credit || c.PrefillLoadScale != tc.scale || len(notices) != tc.notices {
			t.Errorf("%v %v: credit %v scale %v, notices %v, error %v", tc.environ, tc.flags, c.OverlapScoreCredit, c.PrefillLoadScale, notices, err)
		}
	}
}

// TestVariablesOfOneSetting: Blockyard's wins; others must agree unless a flag
// decides; blank ones and the second of a name do not count.
func TestVariablesOfOneSetting(t *testing.T) {
	for environ, want := range map[string]string{
		"BLOCKYARD_ROUTER_MODE=kv DYN_ROUTER_MODE=round_robin":               "kv",
		"BLOCKYARD_ROUTER_MODE= DYN_ROUTER_MODE=round_robin":                 "round-robin",
		"DYN_ROUTER_MODE=kv DYN_ROUTER_MODE=round_robin":                     "kv",
		"DYN_ROUTER_USE_KV_EVENTS=1 DYN_USE_KV_EVENTS=on DYN_KV_EVENTS=true": "kv",
		"DYN_ROUTER_USE_KV_EVENTS=1 DYN_KV_EVENTS=0":                         `DYN_KV_EVENTS "0": contradicts DYN_ROUTER_USE_KV_EVENTS "1", which is another name for it`,
		"DYN_ROUTER_TTL=5 DYN_ROUTER_TTL_SECS=6":                             `DYN_ROUTER_TTL "5": contradicts DYN_ROUTER_TTL_SECS "6", which is another name for it`,
		"DYN_ROUTER_TTL=5 DYN_ROUTER_TTL_SECS=5.0":                           "kv",
		"BLOCKYARD_ROUTER_MODE=kv DYN_ROUTER_MODE=fastest":                   `DYN_ROUTER_MODE "fastest": want kv or round-robin or random or power-of-two or least-loaded or direct`,
		"DYN_ROUTER_TEMPERATURE=warm DYN_ROUTER_QUEUE_THRESHOLD=0":           `DYN_ROUTER_TEMPERATURE "warm": want a number, 0 to 1000000; DYN_ROUTER_QUEUE_THRESHOLD "0": want a number, above 0 to 1000000, or none`,
	} {
		c, err := fromEnviron(strings.Fields(environ))
		got := c.RouterMode
		if err != nil {
			got = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		if got != want {
			t.Errorf("%s: %s, want %s", environ, got, want)
		}
	}
	c, _, err := loadFrom(Sources{Environ: []string{"DYN_ROUTER_USE_KV_EVENTS=1", "DYN_KV_EVENTS=0"}, Flags: map[string]string{"router-kv-events": "false"}})
	if err != nil || c.UseKVEvents {
		t.Errorf("a flag does not decide: %v", err)
	}
	if _, _, err := loadFrom(Sources{Flags: map[string]string{"kv-events": "1", "x": "y"}}); err == nil || err.Error() != "--kv-events: no such flag\n--x: no such flag" {
		t.Errorf("error %v", err)
	}
}

// TestLoadAwarePreset: it sets what Dynamo's does, wherever it is asked for, and
// contradicts what was asked for besides.
func TestLoadAwarePreset(t *testing.T) {
	want := CommandDefault()
	want.LoadAware, want.OverlapScoreCredit, want.SharedCacheMultiplier = true, 0, 0
	want.UseKVEvents, want.RouterAssumeKVReuse = false, false
	for _, from := range []Sources{
		{Document: []byte(`{"load_aware":true}`)},
		{Environ: []string{"DYN_ROUTER_LOAD_AWARE=true"}},
		{Flags: map[string]string{"load-aware": "true"}, Environ: []string{"DYN_ROUTER_USE_KV_EVENTS=0", "DYN_ROUTER_TRACK_ACTIVE_BLOCKS=1"}},
	} {
		if c, _, err := loadFrom(from); err != nil || !cmp.Equal(c, want) {
			t.Errorf("%+v: %v, %s", from, err, cmp.Diff(want, c))
		}
	}
	for text, from := range map[string]Sources{
		`DYN_KV_EVENTS "true": contradicts load_aware (--load-aware), which sets use_kv_events to false`: {
			Environ: []string{"DYN_KV_EVENTS=1"}, Flags: map[string]string{"load-aware": "true"}},
		`--router-kv-overlap-score-credit "0.5": contradicts load_aware (a.json load_aware), which sets overlap_score_credit to 0`: {
			Name: "a.json", Document: []byte(`{"load_aware":true}`), Flags: map[string]string{"router-kv-overlap-score-credit": "0.5"}},
		`router_predicted_ttl_secs "2": contradicts load_aware (load_aware), which sets router_predicted_ttl_secs to none`: {
			Document: []byte(`{"load_aware":true,"router_predicted_ttl_secs":2}`)},
	} {
		if _, _, err := loadFrom(from); err == nil || err.Error() != text {
			t.Errorf("error %v, want %s", err, text)
		}
	}
}

func TestLoadModelNeedsAProgram(t *testing.T) {
	c := read(t, `{"router_prefill_load_model":"aic"}`)
	if _, err := c.Validate(); err != nil {
		t.Errorf("a program may hand in a model: %v", err)
	}
	if _, _, err := loadFrom(Sources{Environ: []string{"DYN_ROUTER_PREFILL_LOAD_MODEL=aic"}}); !isNotYet(err) {
		t.Errorf("error %v on the command line", err)
	}
}

func manyFields(n int) string {
	var fields []string
	for i := range n {
		fields = append(fields, fmt.Sprintf(`"f%d":1`, i))
	}
	return strings.Join(fields, ",")
}

func TestBadDocuments(t *testing.T) {
	for document, want := range map[string]string{
		``:                                   "want a JSON object",
		`[]`:                                 "want a JSON object",
		`null`:                               "want a JSON object",
		`{"router_temperature":1} x`:         "text after the JSON object",
		`{"router_temperature":1}{}`:         "text after the JSON object",
		`{"router_temperature":1`:            "EOF",
		`{"Router_Temperature":1}`:           `"Router_Temperature": no such field`,
		`{"router_temperature":"1"}`:         `router_temperature "1": want a number, 0 to 1000000`,
		`{"router_temperature":-1}`:          `router_temperature "-1": want a number, 0 to 1000000`,
		`{"router_temperature":1e400}`:       `router_temperature "1e400": want a number, 0 to 1000000`,
		`{"router_temperature":null}`:        `router_temperature "null": want a number, 0 to 1000000`,
		`{"router_temperature":true}`:        `router_temperature "true": want a number, 0 to 1000000`,
		`{"router_temperature":[1]}`:         `router_temperature "[1]": want a number, 0 to 1000000`,
		`{"use_kv_events":1}`:                `use_kv_events "1": want true or false`,
		`{"use_kv_events":"true"}`:           `use_kv_events "true": want true or false`,
		`{"router_event_threads":1.5}`:       `router_event_threads "1.5": want a whole number, 1 to 4294967295`,
		`{"router_snapshot_threshold":0}`:    `router_snapshot_threshold "0": want a whole number, 1 to 4294967295, or none or (flag and variable) 0`,
		`{"router_queue_policy":1}`:          `router_queue_policy "1": want fcfs or lcfs or wspt or edf`,
		`{"seed":1,"seed":1}`:                `"seed" is given twice`,
		`{"a":1,"router_ttl_secs":-1}`:       "\"a\": no such field\nrouter_ttl_secs \"-1\": want a number, 0 to 1000000000",
		`{"kv_cache_block_size":"none"}`:     `kv_cache_block_size "none": want a whole number, 1 to 65536, or none`,
		`{"index_memory_bytes":"8GiB"}`:      `index_memory_bytes "8GiB": want a size such as 8GiB, 1MiB to 64TiB`,
		"{\"" + strings.Repeat("x", 1<<20):   "1048578 bytes: want at most 1048576",
		`{"router_policy_config":""}`:        `router_policy_config "": want text of 1 to 4096 bytes, or none`,
		`{"durable_kv_events":true,}`:        "invalid character",
		"{" + manyFields(257) + "}":          "more than 256 fields",
		`{"use_kv_events":tru}`:              "invalid character",
		`{"router_queue_policy":"\ud800"}  `: "router_queue_policy",
	} {
		c, err := parseJSON([]byte(document))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %s", document, err, want)
		}
		if !cmp.Equal(c, Config{}) {
			t.Errorf("%.80s: an error came with %+v", document, c)
		}
	}
	if _, _, err := loadFrom(Sources{Name: "a.json", Document: []byte(`{"x":1}`)}); err == nil || err.Error() != `a.json: "x": no such field` {
		t.Errorf("error %v does not name the document", err)
	}
}

// FuzzDocument: nothing makes the reader panic, and what it takes it also writes
// and takes again.
func FuzzDocument(f *testing.F) {
	for _, l := range limits {
		f.Add([]byte(fmt.Sprintf("{%q:%s}", l.name, jsonOf(find(Settings(), l.name), strings.Fields(l.good)[0]))))
		f.Add([]byte(fmt.Sprintf("{%q:%s}", l.name, strings.Fields(l.bad)[0])))
	}
	f.Add([]byte(`{"overlap_score_weight":2,"overlap_score_credit":0.5,"x":{"y":[null]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseJSON(data)
		if err != nil {
			return
		}
		for _, s := range Settings() {
			if !s.domain.check(s.at(&c)) {
				t.Errorf("%s %s got through", s.Name, s.Text(&c))
			}
		}
		again, err := json.Marshal(&c)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseJSON(again); err != nil || !cmp.Equal(got, c) {
			t.Errorf("%s: %v, %s", again, err, cmp.Diff(c, got))
		}
		_, _ = c.Validate()
	})
}

// Dynamo's object sets the settings that it names, from every source. A setting that a source
// gives another value, an unknown member and a bad value are errors.
func TestConditionalDisaggObject(t *testing.T) {
	const object = `{"policy":"isl_or_load","eff_isl_threshold":4096,"eff_isl_ratio_threshold":0.8,"prefill_busy_threshold":16,"decode_busy_threshold":null}`
	const flag = "router-conditional-disagg-config"
	on := map[string]string{"router-conditional-disagg": "true"}
	with := func(flags map[string]string, more ...string) map[string]string {
		all := maps.Clone(flags)
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	for name, from := range map[string]Sources{
		"flag":         {Flags: with(on, flag, object)},
		"variable":     {Environ: []string{"DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG=" + object}, Flags: on},
		"document":     {Document: []byte(`{"conditional_disagg_config":` + strconv.Quote(object) + `}`), Flags: on},
		"equal values": {Flags: with(on, flag, object, "router-conditional-disagg-eff-isl-threshold", "4096")},
	} {
		l, err := Resolve(from)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c := &l.Config
		if c.ConditionalDisaggPolicy != disaggEither || c.ConditionalDisaggEffISLThreshold != 4096 || c.ConditionalDisaggEffISLRatioThreshold != 0.8 ||
			c.ConditionalDisaggPrefillBusyThreshold == nil || *c.ConditionalDisaggPrefillBusyThreshold != 16 || c.ConditionalDisaggDecodeBusyThreshold != nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
	for want, flags := range map[string]map[string]string{
		`--router-conditional-disagg-config: want a JSON object`:                                 with(on, flag, "4096"),
		`--router-conditional-disagg-config: "enabled": no such field`:                           with(on, flag, `{"enabled":true}`),
		`--router-conditional-disagg-config: eff_isl_ratio_threshold "2": want a number, 0 to 1`: with(on, flag, `{"eff_isl_ratio_threshold":2}`),
		`--router-conditional-disagg-eff-isl-threshold "9": contradicts --router-conditional-disagg-config, which sets conditional_disagg_eff_isl_threshold to 4096`: with(
			on, flag, object, "router-conditional-disagg-eff-isl-threshold", "9"),
	} {
		if _, err := Resolve(Sources{Flags: flags}); err == nil || err.Error() != want {
			t.Errorf("%v: error %v, want %s", flags, err, want)
		}
	}
}
