package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
)

// wantAnswer checks an answer that is no error.
func (n *node) wantAnswer(t *testing.T, path, body, want string) {
	t.Helper()
	if code, got := ask(t, n.control, http.MethodPost, path, body); code != http.StatusOK || got != want {
		t.Errorf("%s %s: status %d, %s; want %s", path, body, code, got, want)
	}
}

func TestResizeOverHTTP(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 3)
	n.wantAnswer(t, "/v1/resize", `{"tier":"host","bytes":262144,"timeout_seconds":5,"dry_run":true}`,
		`{"tier":"host","bytes_before":1048576,"bytes":262144,"used_bytes":524288,"settled":false,"dry_run":true}`)
	n.wantAnswer(t, "/v1/resize", `{"tier":"host","bytes":262144,"timeout_seconds":5}`,
		`{"tier":"host","bytes_before":1048576,"bytes":262144,"used_bytes":262144,"settled":true}`)
	n.wantTiers(t, p, 0, 3, 0, 3) // the empty extent goes first
	for body, want := range map[string]struct {
		code int
		text string
	}{
		`{"tier":"host","bytes":1,"timeout_seconds":5}`:                {http.StatusConflict, "host size 1: want 256KiB (one extent)"},
		`{"tier":"host","bytes":1,"timeout_seconds":5,"dry_run":true}`: {http.StatusConflict, "host size 1: want 256KiB (one extent)"},
		`{"tier":"gpu","bytes":524288,"timeout_seconds":5}`:            {http.StatusBadRequest, `tier "gpu": want host or disk`},
		`{"tier":"host","bytes":524288,"timeout_seconds":50}`:          {http.StatusBadRequest, "timeout_seconds 50: want 0.001 to 25"},
	} {
		code, got := ask(t, n.control, http.MethodPost, "/v1/resize", body)
		wantError(t, code, got, want.code, want.text)
	}
}

func TestQuotaOverHTTP(t *testing.T) {
	n := openNode(t)
	n.fill(t, "w", 3)
	if _, err := n.manager.SetTenants([]blockmgr.Tenant{{Name: "acme"}}); err != nil {
		t.Fatal(err)
	}
	n.wantAnswer(t, "/v1/quota", `{"model":"tiny","tier":"host","bytes":262144,"timeout_seconds":5,"dry_run":true}`,
		`{"bytes_before":0,"bytes":262144,"used_bytes":524288,"settled":false,"dry_run":true}`)
	n.wantAnswer(t, "/v1/quota", `{"model":"tiny","tier":"host","bytes":262144,"timeout_seconds":5}`,
		`{"bytes_before":0,"bytes":262144,"used_bytes":262144,"settled":true}`)
	n.wantAnswer(t, "/v1/quota", `{"tenant":"acme","tier":"disk","bytes":65536,"timeout_seconds":5}`,
		`{"bytes_before":0,"bytes":65536,"used_bytes":0,"settled":true}`)
	n.wantAnswer(t, "/v1/quota", `{"tenant":"acme","model":"tiny","tier":"disk","bytes":16384,"timeout_seconds":5}`,
		`{"bytes_before":0,"bytes":16384,"used_bytes":0,"settled":true}`)
	code, got := ask(t, n.control, http.MethodGet, "/v1/quota", "")
	want := `{"tiers":{"disk":{"bytes":1048576,"used_bytes":262144},"host":{"bytes":1048576,"used_bytes":262144}},"quotas":[` +
		`{"of":"model","name":"tiny","share":1,"host":{"limit_bytes":262144,"used_bytes":262144},"disk":{"limit_bytes":0,"used_bytes":262144}},` +
		`{"of":"tenant","name":"acme","host":{"limit_bytes":0,"used_bytes":0},"disk":{"limit_bytes":65536,"used_bytes":0}},` +
		`{"of":"tenant_model","name":"acme","model":"tiny","host":{"limit_bytes":0,"used_bytes":0},"disk":{"limit_bytes":16384,"used_bytes":0}}]}`
	if code != http.StatusOK || got != want {
		t.Errorf("status %d, %s; want %s", code, got, want)
	}
	for body, want := range map[string]struct {
		code int
		text string
	}{
		`{"tier":"host","bytes":0,"timeout_seconds":5}`:                             {http.StatusBadRequest, "want one of them or both"},
		`{"model":"m","tenant":"acme","tier":"host","bytes":5,"timeout_seconds":5}`: {http.StatusConflict, "host limit 5: want 0 (none) or at least 4KiB"},
		`{"model":"m","tier":"host","bytes":5,"timeout_seconds":5}`:                 {http.StatusConflict, "host limit 5: want 0 (none) or at least 256KiB (one extent)"},
		`{"tenant":"nobody","tier":"host","bytes":65536,"timeout_seconds":5}`:       {http.StatusNotFound, `tenant "nobody" is not in the limits file`},
	} {
		code, got := ask(t, n.control, http.MethodPost, "/v1/quota", body)
		wantError(t, code, got, want.code, want.text)
	}
}

// TestDryRunOfAQuotaRefusesWhatTheQuotaDoes: a tenant has limits in at most 1,024 models, also in a dry run.
func TestDryRunOfAQuotaRefusesWhatTheQuotaDoes(t *testing.T) {
	n := openNode(t)
	models := map[string]blockmgr.Limit{}
	for i := range tenant.MaxModels {
		models[fmt.Sprint(i)] = blockmgr.Limit{HostBytes: 1 << 20}
	}
	if _, err := n.manager.SetTenants([]blockmgr.Tenant{{Name: "acme", Models: models}}); err != nil {
		t.Fatal(err)
	}
	for _, dryRun := range []string{"true", "false"} {
		code, got := ask(t, n.control, http.MethodPost, "/v1/quota", `{"tenant":"acme","model":"more","tier":"host","bytes":65536,"timeout_seconds":5,"dry_run":`+dryRun+`}`)
		wantError(t, code, got, http.StatusConflict, "limits of 1025 models: want at most 1024")
	}
}

// TestPrefetchReadsWhatIsOnDiskAlone: by prompt, by hashes, and no more than host memory has room for.
func TestPrefetchReadsWhatIsOnDiskAlone(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 4)
	ns := p.NamespaceID().String()
	tokens, _ := json.Marshal(prompt(4))
	byPrompt := fmt.Sprintf(`{"namespace":"%s","tokens":%s,"timeout_seconds":5`, ns, tokens)
	evict := func() {
		t.Helper()
		n.wantAnswer(t, "/v1/reset", `{"tier":"host","namespace":"`+ns+`"}`, `{"reset":["`+ns+`"]}`)
		n.wantTiers(t, p, 0, 0, 0, 4)
	}
	evict()
	n.wantAnswer(t, "/v1/prefetch", byPrompt+`,"dry_run":true}`, `{"host":0,"read":0,"left":4,"dry_run":true}`)
	n.wantTiers(t, p, 0, 0, 0, 4)
	n.wantAnswer(t, "/v1/prefetch", byPrompt+`}`, `{"host":0,"read":4,"left":0}`)
	n.wantTiers(t, p, 0, 4, 0, 4)
	n.wantAnswer(t, "/v1/prefetch", byPrompt+`}`, `{"host":4,"read":0,"left":0}`)
	evict()
	hash := fmt.Sprintf("%016x", uint64(p.blocks[2].Seq))
	n.wantAnswer(t, "/v1/prefetch", fmt.Sprintf(`{"namespace":"%s","sequence_hashes":["%s"],"timeout_seconds":5}`, ns, hash), `{"host":0,"read":1,"left":0}`)
	n.wantTiers(t, p, 0, 1, 0, 4)
	// A prompt with a gap ends there: no lookup would find the rest.
	other := fmt.Sprintf("%016x", uint64(p.blocks[1].Seq))
	n.wantAnswer(t, "/v1/reset-blocks", fmt.Sprintf(`{"namespace":"%s","tier":"disk","sequence_hashes":["%s"]}`, ns, other),
		`{"reset_blocks":["`+other+`"],"not_found":[],"not_reset":[]}`)
	n.wantAnswer(t, "/v1/prefetch", byPrompt+`}`, `{"host":0,"read":1,"left":0}`)

	code, got := ask(t, n.control, http.MethodPost, "/v1/prefetch", `{"namespace":"`+ns+`","all":true,"timeout_seconds":0}`)
	wantError(t, code, got, http.StatusBadRequest, "timeout_seconds 0")
	code, got = ask(t, n.public, http.MethodPost, "/v1/prefetch", byPrompt+`}`)
	if code != http.StatusNotFound || !strings.Contains(got, "unknown") {
		t.Errorf("the public listener answers %d, %s", code, got)
	}
}
