package pages

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// yard returns commands that start an agent with both tiers, an engine for each worker id and a router where the pages
// expect them. host is a directory in memory, flags are the router's.
func yard(host, flags, model string, workers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
export BLOCKYARD_HOST_DIR=%s BLOCKYARD_SOCKET=/run/blockyard/agent.sock
bin/blockyard agent --node node-1 --host-size 256MiB --disk-dir /run/blockyard/disk --disk-size 256MiB --admin 127.0.0.1:9400 2> /run/blockyard/agent.log &
`, host)
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
`, flags, len(workers))
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
		flags, model string
		workers      []string
	}{
		{reading{page: "route.md", before: lost, others: `^bin/`}, "", "m", []string{"1", "2"}},
		{reading{
			page: "router-api.md", before: served, others: `^(nats|blockyard) |record_routing_decision`,
			unlike: `output_block`, // of a request that has ended
		}, "--score weights", "m", []string{"7"}},
		{reading{page: "operations.md", before: served, others: `^blockyard `}, "", "llama", []string{"1", "2"}},
	} {
		t.Run(c.page, func(t *testing.T) {
			c.first = yard(memoryDir(t), c.flags, c.model, c.workers...)
			c.replaced = map[string]string{"/run/blockyard": t.TempDir()}
			run(t, c.reading)
		})
	}
}
