package pages

import (
	"os"
	"strings"
	"testing"
)

// yard starts an agent with both tiers, two engines and a router where the pages expect them. WORKER stands for the
// worker id of the first engine, NEXT for that of the second, MODEL for their model.
const yard = `
export BLOCKYARD_HOST_DIR=/dev/shm/blockyard-page BLOCKYARD_SOCKET=/run/blockyard/agent.sock
bin/blockyard agent --node node-1 --host-size 256MiB --disk-dir /run/blockyard/disk --disk-size 256MiB --admin 127.0.0.1:9400 2> /run/blockyard/agent.log &
engine="bin/blockyard-lab sim-engine --model MODEL --agent-socket $BLOCKYARD_SOCKET"
$engine --worker-id WORKER --http 127.0.0.1:8101 2> /run/blockyard/engine-1.log &
$engine --worker-id NEXT --http 127.0.0.1:8102 2> /run/blockyard/engine-2.log &
bin/blockyard router --agents http://127.0.0.1:9400 --http 127.0.0.1:8090 --control /run/blockyard/router-8090.sock 2> /run/blockyard/router.log &
CONTROL="curl -s --unix-socket /run/blockyard/router-8090.sock http://localhost"
until [ "$(curl -s 127.0.0.1:8090/v1/workers | grep -o '"quality":"exact"' | wc -l)" = 2 ]; do sleep 0.1; done
PROMPT=$(seq -s, 1 160)
`

// served has both engines serve a prompt of 10 blocks, the first of them without a cache of its own.
const served = `
for port in 127.0.0.1:8102 127.0.0.1:8101; do
curl -s -X POST $port/v1/reset_prefix_cache > /dev/null
curl -s $port/v1/generate -d '{"request_id":"'$RANDOM'","tokens":['$PROMPT'],"output_tokens":1}' > /dev/null
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
	for _, r := range []reading{
		{page: "route.md", before: lost, others: `^bin/`, unlike: `potential_loads|/v1/workers`},
		{page: "router-api.md", before: served, others: `^(nats|blockyard) |record_routing_decision`, unlike: `.`},
		{page: "operations.md", before: served, others: `^blockyard `},
	} {
		t.Run(r.page, func(t *testing.T) {
			worker, next, model := "1", "2", "m"
			switch r.page {
			case "router-api.md":
				worker, next = "7", "9"
			case "operations.md":
				model = "llama"
			}
			r.first = strings.NewReplacer("WORKER", worker, "NEXT", next, "MODEL", model).Replace(yard)
			r.replaced = map[string]string{"/run/blockyard": t.TempDir(), "/dev/shm/blockyard-page": memoryDir(t)}
			run(t, r)
		})
	}
}
