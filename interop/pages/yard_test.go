package pages

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// yard returns commands that start an agent with both tiers, an engine for each worker id and a router where the pages
// expect them, and a function that has "blockyard admin" ask this agent. host is a directory in memory, agent and router
// are flags.
func yard(host, agent, router, model string, workers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
export BLOCKYARD_HOST_DIR=%s BLOCKYARD_SOCKET=/run/blockyard/agent.sock
blockyard() {
	case "$*" in
	*--control*) command blockyard "$@" ;;
	admin*) command blockyard "$@" --control $BLOCKYARD_SOCKET.control ;;
	*) command blockyard "$@" ;;
	esac
}
bin/blockyard agent %s --node node-1 --host-size 256MiB --disk-dir /run/blockyard/disk --disk-size 256MiB --admin 127.0.0.1:9400 2> /run/blockyard/agent.log &
`, host, agent)
	for i, worker := range workers {
		fmt.Fprintf(&b, `
bin/blockyard-lab sim-engine --worker-id %[1]s --model %[2]s --agent-socket $BLOCKYARD_SOCKET --http 127.0.0.1:810%[3]d 2> /run/blockyard/engine-%[3]d.log &
ENGINES="127.0.0.1:810%[3]d $ENGINES"
`, worker, model, i+1)
	}
	fmt.Fprintf(&b, `
bin/blockyard router %s --agents http://127.0.0.1:9400 --http 127.0.0.1:8090 --control /run/blockyard/router-8090.sock 2> /run/blockyard/router.log &
CONTROL="curl -s --unix-socket /run/blockyard/router-8090.sock http://localhost"
until [ "$(curl -s 127.0.0.1:8090/v1/workers | grep -o '"quality":"exact"' | wc -l)" = %d ]; do sleep 0.1; done
PROMPT=$(seq -s, 1 160)
`, router, len(workers))
	return b.String()
}

// served has all engines serve a prompt of 10 blocks, the last one first. None has a cache of its own before.
const served = `
for engine in $ENGINES; do
curl -s -X POST $engine/v1/reset_prefix_cache > /dev/null
curl -s $engine/v1/generate -d '{"request_id":"'$RANDOM'","tokens":['$PROMPT'],"output_tokens":1}' > /dev/null
done
`

// lost has the first engine lose its cache. The agent has the prompt in host memory.
const lost = served + `curl -s -X POST 127.0.0.1:8101/v1/reset_prefix_cache > /dev/null
`

// TestPagesBesideAYard: the commands of pages about a running agent and router answer what the pages show.
func TestPagesBesideAYard(t *testing.T) {
	if os.Getenv("BLOCKYARD_BIN") == "" {
		t.Skip("BLOCKYARD_BIN is not set: make test-ops")
	}
	for _, c := range []struct {
		reading
		agent, router, model string
		workers              []string
	}{
		{reading{page: "route.md", before: lost}, "", "", "m", []string{"1", "2"}},
		{reading{page: "router-api.md", before: served, unlike: `output_block`}, "", "--score weights", "m", []string{"7"}}, // of a request that has ended
		{reading{page: "operations.md", before: served}, "", "", "llama", []string{"1", "2"}},
		{reading{page: "watch.md", before: served, unlike: `.`}, "", "", "m", []string{"1", "2"}},
		{reading{page: "fix.md", before: served, unlike: `.`}, "", "", "m", []string{"1", "2"}},
		{reading{page: "deploy.md", before: served}, "", "", "m", []string{"1", "2"}},
		{reading{page: "events-http.md", before: served}, "", "", "m", []string{"1"}},
	} {
		t.Run(c.page, func(t *testing.T) {
			c.first = yard(memoryDir(t), c.agent, c.router, c.model, c.workers...)
			c.replaced = map[string]string{"/run/blockyard": t.TempDir()}
			run(t, c.reading)
		})
	}
}

// TestConfigurationPage: the commands of docs/config.md read the file that the page shows.
func TestConfigurationPage(t *testing.T) {
	if os.Getenv("BLOCKYARD_BIN") == "" {
		t.Skip("BLOCKYARD_BIN is not set: make test-ops")
	}
	run(t, reading{page: "config.md", replaced: map[string]string{
		"/etc/blockyard": t.TempDir(), "/etc/bash_completion.d": t.TempDir(), "/usr/local/share/man/man1": t.TempDir(),
	}})
}
