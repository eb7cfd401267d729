package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// say posts a request about the pool and checks the answer.
func (n *node) say(t *testing.T, p *pool, path, fields, want string) {
	t.Helper()
	body := fmt.Sprintf(`{"namespace":"%s",%s}`, p.NamespaceID(), fields)
	if code, got := ask(t, n.control, http.MethodPost, path, body); code != http.StatusOK || got != want {
		t.Errorf("%s %s: status %d, %s; want %s", path, fields, code, got, want)
	}
}

// TestKeepAndUnkeepByHashPromptAndNamespace: each way names the same blocks, and a dry run counts
// them and changes nothing. No more than half of the tier is kept.
func TestKeepAndUnkeepByHashPromptAndNamespace(t *testing.T) {
	n := openNode(t)
	p, other := n.fill(t, "a", 4), n.fill(t, "b", 4)
	tokens, _ := json.Marshal(prompt(2))
	hashes := fmt.Sprintf(`"sequence_hashes":["%016x","00000000000000ff"]`, uint64(p.blocks[3].Seq))
	n.say(t, p, "/v1/keep", `"ttl_seconds":60,"dry_run":true,`+hashes, `{"kept":1,"blocks":1,"dry_run":true}`)
	n.say(t, p, "/v1/keep", `"ttl_seconds":60,"dry_run":true,"all":true`, `{"kept":4,"blocks":4,"dry_run":true}`)
	n.say(t, p, "/v1/keep", `"ttl_seconds":60,"dry_run":true,"salt":"x","tokens":`+string(tokens), `{"kept":0,"blocks":2,"dry_run":true}`)
	n.wantTiers(t, p, 0, 4, 0, 4)
	n.say(t, p, "/v1/keep", `"ttl_seconds":60,`+hashes, `{"kept":1,"blocks":1}`)
	n.wantTiers(t, p, 1, 3, 1, 3)
	n.say(t, p, "/v1/keep", `"ttl_seconds":60,"all":true`, `{"kept":4,"blocks":4}`)
	n.say(t, other, "/v1/keep", `"ttl_seconds":60,"all":true`, `{"kept":4,"blocks":4}`)
	n.wantTiers(t, p, 4, 0, 4, 0)

	n.say(t, p, "/v1/unkeep", `"dry_run":true,"all":true`, `{"ended":4,"blocks":4,"dry_run":true}`)
	n.wantTiers(t, p, 4, 0, 4, 0)
	n.say(t, p, "/v1/unkeep", `"tokens":`+string(tokens), `{"ended":2,"blocks":2}`)
	n.wantTiers(t, p, 2, 2, 2, 2)
	n.say(t, p, "/v1/unkeep", hashes, `{"ended":1,"blocks":1}`)
	n.say(t, p, "/v1/unkeep", `"all":true`, `{"ended":1,"blocks":4}`)
	n.wantTiers(t, p, 0, 4, 0, 4)
	n.wantTiers(t, other, 4, 0, 4, 0)
}

// TestDryRunOfResetsChangesNothing: it answers as the reset would, refusals included.
func TestDryRunOfResetsChangesNothing(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 3)
	n.say(t, p, "/v1/reset", `"tier":"all","dry_run":true`, fmt.Sprintf(`{"reset":["%s"],"dry_run":true,"blocks":6}`, p.NamespaceID()))
	n.say(t, p, "/v1/reset", `"tier":"disk","dry_run":true`, fmt.Sprintf(`{"reset":["%s"],"dry_run":true,"blocks":3}`, p.NamespaceID()))
	unpin := p.pin(t)
	code, got := ask(t, n.control, http.MethodPost, "/v1/reset", `{"tier":"host","dry_run":true}`)
	wantError(t, code, got, http.StatusConflict, "in use")
	used, free := uint64(p.blocks[0].Seq), uint64(p.blocks[1].Seq)
	n.say(t, p, "/v1/reset-blocks", fmt.Sprintf(`"tier":"host","dry_run":true,"sequence_hashes":[%d,%d,255]`, used, free),
		fmt.Sprintf(`{"reset_blocks":["%016x"],"not_found":["00000000000000ff"],"not_reset":["%016x"],"dry_run":true}`, free, used))
	unpin()
	n.wantTiers(t, p, 0, 3, 0, 3)
}

// TestFlushNamesPoolsAtRest: a pool whose blocks are sealed and written has nothing left.
func TestFlushNamesPoolsAtRest(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 3)
	flushed := fmt.Sprintf(`{"flushed":["%s"],"pending":[]`, p.NamespaceID())
	n.say(t, p, "/v1/flush", `"timeout_seconds":20`, flushed+"}")
	n.say(t, p, "/v1/flush", `"timeout_seconds":20,"dry_run":true`, flushed+`,"dry_run":true}`)
	if code, got := ask(t, n.control, http.MethodPost, "/v1/flush", `{"timeout_seconds":1}`); code != http.StatusOK || got != flushed+"}" {
		t.Errorf("of all pools: status %d, %s", code, got)
	}
}

func TestSelectionNamesWhatIsWrong(t *testing.T) {
	n := openNode(t)
	p := n.fill(t, "w", 1)
	for _, c := range []struct{ path, fields, want string }{
		{"/v1/keep", `"ttl_seconds":5,"all":true,"sequence_hashes":[1]`, "tokens, sequence_hashes, all: 2 of them, want one"},
		{"/v1/keep", `"ttl_seconds":5`, "tokens: 0 items, want 4 (one block) to"},
		{"/v1/keep", `"ttl_seconds":5,"sequence_hashes":[]`, "sequence_hashes: 0 items, want 1..1048576"},
		{"/v1/keep", `"all":true`, "ttl_seconds 0: want"},
		{"/v1/unkeep", `"ttl_seconds":5,"all":true`, `unknown field "ttl_seconds"`},
		{"/v1/flush", `"timeout_seconds":26`, "timeout_seconds 26: want 0.001 to 25"},
	} {
		body := fmt.Sprintf(`{"namespace":"%s",%s}`, p.NamespaceID(), c.fields)
		code, got := ask(t, n.control, http.MethodPost, c.path, body)
		wantError(t, code, got, http.StatusBadRequest, c.want)
	}
	code, got := ask(t, n.control, http.MethodPost, "/v1/unkeep", `{"namespace":"`+strings.Repeat("ab", 16)+`","all":true}`)
	wantError(t, code, got, http.StatusNotFound, "no such pool is open")
	n.wantTiers(t, p, 0, 1, 0, 1)
}
