package limits_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/agent/limits"
	"github.com/blockyard-ai/blockyard/blockmgr"
)

func TestFileIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	text := `
models:
  llama: {host: 32GiB, disk: 1TiB}
tenants:
  zeta: {disk: 10GB}
  acme: {salts: [s3cret, other], host: 8GiB, ttl: 36h, models: {llama: {host: 4GiB}}}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := limits.Load(path)
	want := limits.Limits{
		Models: map[string]blockmgr.Limit{"llama": {HostBytes: 32 << 30, DiskBytes: 1 << 40}},
		Tenants: []blockmgr.Tenant{
			{Name: "acme", Salts: []string{"s3cret", "other"}, HostBytes: 8 << 30, Models: map[string]blockmgr.Limit{"llama": {HostBytes: 4 << 30}}, TTL: 36 * time.Hour},
			{Name: "zeta", DiskBytes: 10e9, Models: map[string]blockmgr.Limit{}},
		},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v, difference:\n%s", err, diff)
	}
	if got, err := limits.Parse(nil); err != nil || len(got.Models)+len(got.Tenants) != 0 {
		t.Errorf("an empty file: %+v, %v", got, err)
	}
}

func TestBadFileIsRefusedWithTheField(t *testing.T) {
	for text, want := range map[string]string{
		"modles: {}":                                    "field modles not found",
		"models: {llama: {host: 3 apples}}":             "apples",
		"models: {'': {host: 3}}":                       "a limit without a model",
		"tenants: {a: {ttl: 1ms}}":                      `tenant "a": time to live 1ms: want 0 (for ever) or 1s to`,
		"tenants: {a: {models: {'': {host: 3}}}}":       `tenant "a": limits of 1 models: want at most 1024, each with the name`,
		"tenants: {'a/b': {}}":                          `tenant "a/b": want 1 to 64 letters`,
		"tenants: {a: {salts: [x]}, b: {salts: [x]}}":   `tenant "b": one of its salts occurs twice`,
		"tenants: {a: {salts: ['blockyard-tenant:b']}}": "does not begin with blockyard-tenant:",
		"models: {}\n---\nmodels: {}":                   "more than one document",
	} {
		if _, err := limits.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
