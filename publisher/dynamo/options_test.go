package dynamo

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestSubjectsAreEncoded(t *testing.T) {
	for _, tc := range []struct{ namespace, component, endpoint, want string }{
		{"dynamo", "backend", "generate", "namespace.dynamo.component.backend.endpoint.generate.kv-events"},
		{"ns.one", "worker*", "generate.>", "namespace.ns%2Eone.component.worker%2A.endpoint.generate%2E%3E.kv-events"},
		{"a_b-9", "ü", "%", "namespace.a_b-9.component.%C3%BC.endpoint.%25.kv-events"},
	} {
		o := Options{Namespace: tc.namespace, Component: tc.component, Endpoint: tc.endpoint}
		if got := o.subject("kv-events"); got != tc.want {
			t.Errorf("%s.%s.%s: %s", tc.namespace, tc.component, tc.endpoint, got)
		}
	}
}

func TestOptionsNameWhatIsWrong(t *testing.T) {
	good := Options{Namespace: "a", Component: "b", Endpoint: "c", FileKV: "d"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Options){
		"namespace":                func(o *Options) { o.Namespace = "" },
		"component":                func(o *Options) { o.Component = "x/y" },
		"endpoint":                 func(o *Options) { o.Endpoint = strings.Repeat("x", maxName+1) },
		"byte 1 is not allowed":    func(o *Options) { o.Endpoint = "x\ny" },
		"discovery directory":      func(o *Options) { o.FileKV = "" },
		"the limit is 255":         func(o *Options) { o.Namespace = strings.Repeat("-", maxName) },
		"want host:port":           func(o *Options) { o.Recovery = "here" },
		"0..65535":                 func(o *Options) { o.Recovery = "127.0.0.1:70000" },
		"1..65535":                 func(o *Options) { o.Recovery, o.Advertise = "127.0.0.1:0", "node:0" },
		"nothing is listened on":   func(o *Options) { o.Advertise = "node:1" },
		"advertised address is ne": func(o *Options) { o.Recovery = "[::]:0" },
	} {
		o := good
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestRecordPathsAreFileNames(t *testing.T) {
	o := Options{Namespace: "dynamo", Component: "backend", Endpoint: "generate", FileKV: "kv"}
	want := filepath.Join("kv", "v1", "event_sources",
		"namespace%2Fdynamo%2Fcomponent%2Fbackend%2Fendpoint%2Fgenerate%2Ftopic%2Fkv%2Devents%2F109f41fd498827")
	if got := o.recordPath(bucketSources, o.sourceKey(0x109f41fd498827)); got != want {
		t.Error(got)
	}
}
