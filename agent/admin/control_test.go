package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/admin"
)

func TestResetEmptiesATierUnlessItIsInUse(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 3)
	n.wantTiers(t, p, 0, 3, 0, 3)
	unpin := p.pin(t)
	ns := p.NamespaceID().String()
	for _, body := range []string{`{"tier":"host"}`, `{"tier":"all"}`, `{"tier":"host","namespace":"` + ns + `"}`} {
		code, got := ask(t, n.control, http.MethodPost, "/v1/reset", body)
		wantError(t, code, got, http.StatusConflict, "in use")
	}
	n.wantTiers(t, p, 1, 2, 0, 3)
	unpin()
	want := `{"reset":["` + ns + `"]}`
	if code, got := ask(t, n.control, http.MethodPost, "/v1/reset", `{"tier":"disk"}`); code != http.StatusOK || got != want {
		t.Errorf("status %d, %s; want %s", code, got, want)
	}
	n.wantTiers(t, p, 0, 3, 0, 0)
	if err := p.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, got := ask(t, n.control, http.MethodPost, "/v1/reset", `{"tier":"all"}`); code != http.StatusOK || got != want {
		t.Errorf("status %d, %s; want %s", code, got, want)
	}
	n.wantTiers(t, p, 0, 0, 0, 0)
}

// TestResetOfAllPoolsNamesThePoolInUse: a pool in use stays as it is, and the error names it.
func TestResetOfAllPoolsNamesThePoolInUse(t *testing.T) {
	n := openNode(t)
	free := n.fill(t, "a", 2)
	used := n.fill(t, "b", 2)
	defer used.pin(t)()
	code, got := ask(t, n.control, http.MethodPost, "/v1/reset", `{"tier":"all"}`)
	wantError(t, code, got, http.StatusConflict, "namespace "+used.NamespaceID().String())
	n.wantTiers(t, used, 1, 1, 0, 2)
	code, got = ask(t, n.control, http.MethodPost, "/v1/reset", `{"tier":"all","namespace":"`+free.NamespaceID().String()+`"}`)
	if want := `{"reset":["` + free.NamespaceID().String() + `"]}`; code != http.StatusOK || got != want {
		t.Errorf("status %d, %s; want %s", code, got, want)
	}
	n.wantTiers(t, free, 0, 0, 0, 0)
}

func TestResetBlocksSaysWhatBecameOfEach(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 2)
	defer p.pin(t)()
	used, free := uint64(p.blocks[0].Seq), uint64(p.blocks[1].Seq)
	// A hash comes as 16 digits or as a number.
	body := fmt.Sprintf(`{"namespace":"%s","tier":"host","sequence_hashes":["%016x",%d,"00000000000000ff"]}`, p.NamespaceID(), used, free)
	want := fmt.Sprintf(`{"reset_blocks":["%016x"],"not_found":["00000000000000ff"],"not_reset":["%016x"]}`, free, used)
	if code, got := ask(t, n.control, http.MethodPost, "/v1/reset-blocks", body); code != http.StatusOK || got != want {
		t.Errorf("status %d, %s; want %s", code, got, want)
	}
	n.wantTiers(t, p, 1, 0, 0, 2)
}

// TestResetBlocksByPromptAndNamespace: a selection names the same blocks as for keep. Blocks of another salt
// and of the other tier stay, and so do blocks in use.
func TestResetBlocksByPromptAndNamespace(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 4)
	hash := func(i int) string { return fmt.Sprintf(`"%016x"`, uint64(p.blocks[i].Seq)) }
	answer := func(reset, notFound, notReset string) string {
		return fmt.Sprintf(`{"reset_blocks":[%s],"not_found":[%s],"not_reset":[%s]`, reset, notFound, notReset)
	}
	tokens, _ := json.Marshal(prompt(2))
	ofPrompt := `"tokens":` + string(tokens)
	n.say(t, p, "/v1/reset-blocks", `"tier":"host","salt":"x",`+ofPrompt, answer("", "", "")+"}")
	n.say(t, p, "/v1/reset-blocks", `"tier":"host","dry_run":true,`+ofPrompt, answer(hash(1)+","+hash(0), "", "")+`,"dry_run":true}`)
	n.wantTiers(t, p, 0, 4, 0, 4)
	n.say(t, p, "/v1/reset-blocks", `"tier":"host",`+ofPrompt, answer(hash(1)+","+hash(0), "", "")+"}")
	n.wantTiers(t, p, 0, 2, 0, 4)
	n.say(t, p, "/v1/reset-blocks", `"tier":"host","all":true`, answer(hash(3)+","+hash(2), "", "")+"}") // the disk has all four
	n.say(t, p, "/v1/keep", `"ttl_seconds":60,`+ofPrompt, `{"kept":2,"blocks":2}`)
	code, got := ask(t, n.control, http.MethodPost, "/v1/reset-blocks", fmt.Sprintf(`{"namespace":"%s","tier":"disk","all":true}`, p.NamespaceID()))
	if want := answer(hash(3)+","+hash(2), "", hash(1)+","+hash(0)) + "}"; code != http.StatusOK || got != want {
		t.Errorf("status %d, %s; want %s", code, got, want)
	}
	n.wantTiers(t, p, 0, 0, 2, 0)
}

// TestResetOfAnAdaptersPrompt: an adapter that was replaced under its name has other blocks with the same hashes.
// Those of the new one stay, and one of them in use keeps no block of the old one.
func TestResetOfAnAdaptersPrompt(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 1)
	p.store(t, "old", "sql", 2)
	p.store(t, "new", "sql", 2)
	defer p.pin(t)()
	tokens, _ := json.Marshal(prompt(2))
	want := fmt.Sprintf(`{"reset_blocks":["%016x","%016x"],"not_found":[],"not_reset":[]}`, uint64(p.blocks[1].Seq), uint64(p.blocks[0].Seq))
	n.say(t, p, "/v1/reset-blocks", `"tier":"host","lora":"old","tokens":`+string(tokens), want)
	n.wantTiers(t, p, 1, 2, 0, 5)
	if left := p.NotInHost(p.blocks); len(left) != 0 {
		t.Errorf("%d blocks of the new adapter have left host memory", len(left))
	}
}

func TestKeptBlocksAreNotReset(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 3)
	tokens, _ := json.Marshal(prompt(3)[:2*blockSize+1]) // two blocks and a token
	body := fmt.Sprintf(`{"namespace":"%s","tokens":%s,"ttl_seconds":3600}`, p.NamespaceID(), tokens)
	if code, got := ask(t, n.control, http.MethodPost, "/v1/keep", body); code != http.StatusOK || got != `{"kept":2,"blocks":2}` {
		t.Errorf("status %d, %s", code, got)
	}
	n.wantTiers(t, p, 2, 1, 2, 1)
	body = fmt.Sprintf(`{"namespace":"%s","tokens":%s,"salt":"tenant","ttl_seconds":1.5}`, p.NamespaceID(), tokens)
	if code, got := ask(t, n.control, http.MethodPost, "/v1/keep", body); code != http.StatusOK || got != `{"kept":0,"blocks":2}` {
		t.Errorf("of another salt: status %d, %s", code, got)
	}
	code, got := ask(t, n.control, http.MethodPost, "/v1/reset", `{"tier":"disk"}`)
	wantError(t, code, got, http.StatusConflict, "in use")
	n.wantTiers(t, p, 2, 1, 2, 1)
}

func TestControlNamesWhatIsWrong(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 1)
	ns, absent := p.NamespaceID().String(), strings.Repeat("ab", 16)
	for _, c := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"/v1/reset", `{"tier":"device"}`, 400, `tier "device": want host, disk or all`},
		{"/v1/reset", `{"tier":"host","namespace":"xyz"}`, 400, `namespace "xyz": want 32 hexadecimal digits`},
		{"/v1/reset", `{"tier":"host","namespace":"` + absent + `"}`, 404, `no such pool is open`},
		{"/v1/reset", `{"tier":"all","namespace":""}`, 400, `namespace`},
		{"/v1/reset", `{"tier":"host","force":true}`, 400, `unknown field "force"`},
		{"/v1/reset", `{"tier":"host"} {}`, 400, `more than one JSON value`},
		{"/v1/reset", ``, 400, `body: EOF`},
		{"/v1/reset", strings.Repeat(" ", 64<<20) + `{}`, 413, `body: more than 67108864 bytes`},
		{"/v1/reset-blocks", `{"namespace":"` + ns + `","tier":"all","sequence_hashes":[1]}`, 400, `tier "all": want host or disk`},
		{"/v1/reset-blocks", `{"namespace":"` + ns + `","tier":"host","sequence_hashes":[]}`, 400, `sequence_hashes: 0 items, want 1..1048576`},
		{"/v1/reset-blocks", `{"namespace":"` + ns + `","tier":"host"}`, 400, `tokens: 0 items, want 4 (one block) to`},
		{"/v1/reset-blocks", `{"namespace":"` + ns + `","tier":"host","sequence_hashes":["12"]}`, 400, `want 16 hexadecimal digits in quotes, or a whole number`},
		{"/v1/keep", `{"namespace":"` + ns + `","tokens":[1,2],"ttl_seconds":5}`, 400, `tokens: 2 items, want 4 (one block) to 4194304`},
		{"/v1/keep", `{"namespace":"` + ns + `","tokens":[0,1,2,3],"ttl_seconds":0}`, 400, `ttl_seconds 0: want 0.001 to 2592000`},
		{"/v1/keep", `{"namespace":"` + ns + `","tokens":[0,1,2,3],"ttl_seconds":1e-12}`, 400, `ttl_seconds 1e-12: want 0.001 to`},
		{"/v1/keep", `{"namespace":"` + ns + `","tokens":[0,1,2,3],"ttl_seconds":2592001}`, 400, `ttl_seconds 2.592001e+06: want`},
	} {
		code, body := ask(t, n.control, http.MethodPost, c.path, c.body)
		wantError(t, code, body, c.code, c.want)
	}
	n.wantTiers(t, p, 0, 1, 0, 1)
	if code, got := ask(t, n.control, http.MethodPost, "/v1/reset", `{"tier":"host_pinned"}`); code != http.StatusOK {
		t.Errorf("the host tier by its name in events: status %d, %s", code, got)
	}
	n.wantTiers(t, p, 0, 0, 0, 1)
}

// TestControlOfAClosingAgent: a request that comes while the block manager closes is answered
// as one to repeat, not as an error of the agent.
func TestControlOfAClosingAgent(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 1)
	if err := n.manager.Close(); err != nil {
		t.Fatal(err)
	}
	tokens, _ := json.Marshal(prompt(1))
	body := fmt.Sprintf(`{"namespace":"%s","tokens":%s,"ttl_seconds":5}`, p.NamespaceID(), tokens)
	code, got := ask(t, n.control, http.MethodPost, "/v1/keep", body)
	wantError(t, code, got, http.StatusServiceUnavailable, "closed")
}

// A page of another site cannot have its reader's browser give hints, which read from disk.
func TestBrowserCannotHintForAnotherSite(t *testing.T) {
	hints := 0
	h := admin.Public{History: http.NotFoundHandler(), Metrics: http.NotFoundHandler(), Events: func(mux *http.ServeMux) {
		mux.HandleFunc("POST /v1/events/read-ahead", func(http.ResponseWriter, *http.Request) { hints++ })
	}}.Handler()
	for origin, want := range map[string]int{"": http.StatusOK, "http://elsewhere.example": http.StatusForbidden} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/v1/events/read-ahead", strings.NewReader("{}"))
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("origin %q: status %d, want %d", origin, w.Code, want)
		}
	}
	if hints != 1 {
		t.Errorf("%d hints, want the router's", hints)
	}
}

func TestBrowserCannotResetForAnotherSite(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 1)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/v1/reset", strings.NewReader(`{"tier":"all"}`))
	r.Header.Set("Origin", "http://elsewhere.example")
	w := httptest.NewRecorder()
	n.control.ServeHTTP(w, r)
	if w.Code != http.StatusForbidden {
		t.Errorf("status %d, want 403", w.Code)
	}
	n.wantTiers(t, p, 0, 1, 0, 1)
}
