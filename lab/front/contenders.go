package front

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// contender is one way from clients to stubs.
type contender struct {
	name string
	// exact is true when the router should follow the stubs' events.
	exact, peer bool
	// noIDs is true for a router that refuses prompts of token ids. It gets text alone.
	noIDs bool
	// command returns the router's command; nil without a router. It serves clients on the
	// first port and metrics on the second one.
	command func(o *Options, stubs []Ready, port, metrics int) []string
	// dynamo is true for Dynamo's frontend, whose workers speak no HTTP.
	dynamo bool
	// counter names the metric that counts prompts by where their tokens come from, or events by
	// what became of them. A label of good says that the router knew the cache.
	counter string
	good    []string
}

// contenders are all ways, in the order of the table.
var contenders = []contender{
	{name: "none"},
	{name: "blockyard", exact: true, command: blockyard(), counter: "blockyard_frontend_prompts_total", good: []string{`tokens="exact"`}},
	{name: "blockyard-approximate", command: blockyard("--no-router-kv-events")},
	{name: "vllm-router-kv_aware", peer: true, exact: true, command: vllmRouter("kv_aware"), counter: "kv_routing_inputs_total", good: []string{`result="render"`, `result="token_ids"`}},
	{name: "vllm-router-cache_aware", peer: true, command: vllmRouter("cache_aware")},
	{name: "smg-cache_aware", peer: true, noIDs: true, command: smg},
	{name: "dynamo-kv", peer: true, exact: true, dynamo: true, command: dynamoFrontend, counter: "kv_cache_events_applied", good: []string{`status="ok"`}},
}

func names() (all []string) {
	for i := range contenders {
		all = append(all, contenders[i].name)
	}
	return all
}

type commander = func(o *Options, stubs []Ready, port, metrics int) []string

// blockyard returns the command line of our router, with further flags.
func blockyard(flags ...string) commander {
	return func(o *Options, stubs []Ready, port, metrics int) []string {
		c := []string{o.Product, "router", "--http-host=127.0.0.1", "--http-port=" + strconv.Itoa(port), "--http=" + local(metrics), "--control=127.0.0.1:0"}
		for _, s := range stubs {
			c = append(c, "--worker=http://"+s.HTTP)
		}
		return append(c, flags...)
	}
}

// vllmRouter returns the command line of vllm-router with a policy. Only kv_aware follows the
// stubs' events.
func vllmRouter(policy string) commander {
	return func(o *Options, stubs []Ready, port, metrics int) []string {
		c := []string{
			filepath.Join(o.PeerBin, "vllm-router"), "--host=127.0.0.1", "--port=" + strconv.Itoa(port), "--policy=" + policy,
			"--prometheus-port=" + strconv.Itoa(metrics), "--worker-startup-check-interval=1", "--log-level=warning",
		}
		if policy == "kv_aware" {
			c = append(c, "--kv-event-block-size="+strconv.Itoa(blockSize), "--kv-event-model="+model)
			for _, s := range stubs {
				c = append(c, "--kv-event-source", "http://"+s.HTTP+"="+s.Events, "--kv-event-replay-source", "http://"+s.HTTP+"="+s.Replay)
			}
		}
		return append(append(c, "--worker-urls"), urls(stubs)...)
	}
}

func smg(o *Options, stubs []Ready, port, metrics int) []string {
	return append([]string{
		filepath.Join(o.PeerBin, "smg"), "launch", "--host=127.0.0.1", "--port=" + strconv.Itoa(port), "--policy=cache_aware",
		"--prometheus-port=" + strconv.Itoa(metrics), "--worker-startup-check-interval=1", "--log-level=warn",
		"--disable-tokenizer-autoload", "--worker-urls",
	}, urls(stubs)...)
}

// dynamoWorker returns the command of a worker of Dynamo, and the environment of the workers and
// the frontend of one measurement. They find each other by a new directory.
func (b *bench) dynamoWorker() (command, env []string, err error) {
	dir, err := os.MkdirTemp(b.logs, "dynamo-")
	if err != nil {
		return nil, nil, err
	}
	env = []string{
		"DYN_DISCOVERY_BACKEND=file", "DYN_FILE_KV=" + filepath.Join(dir, "discovery"), "DYN_EVENT_PLANE=zmq",
		"DYN_LOG=warn", "DYN_SELF_HOST_METADATA=0", "HF_HUB_OFFLINE=1",
		"HOME=" + dir, // for the frontend's copy of the model's files
	}
	return []string{b.o.Dynamo, "-m", "live.bench_worker", filepath.Join(dir, "model")}, env, nil
}

// dynamoFrontend returns the command line of Dynamo's frontend.
func dynamoFrontend(o *Options, _ []Ready, port, _ int) []string {
	return []string{
		o.Dynamo, "-m", "dynamo.frontend", "--http-host=127.0.0.1", "--http-port=" + strconv.Itoa(port), "--router-mode=kv",
		"--kv-cache-block-size=" + strconv.Itoa(blockSize), "--discovery-backend=file", "--request-plane=tcp", "--event-plane=zmq",
	}
}

func urls(stubs []Ready) (all []string) {
	for _, s := range stubs {
		all = append(all, "http://"+s.HTTP)
	}
	return all
}

func local(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// freePorts returns two ports of this machine that are free now. Another process may take one
// before its use.
func freePorts() (ports [2]int, err error) {
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return ports, err
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// routed returns the share, 0 to 1, of the prompts or events that the router counted under a label
// of c.good, which says that it knew the cache. words has its counters above 0 as text. Without
// prompts or events the share is 0.
func (c *contender) routed(ctx context.Context, metrics cluster.Endpoint) (share float64, words string, err error) {
	var all, good float64
	var seen []string
	err = metrics.Do(ctx, cluster.Request{Method: "GET", Path: "/metrics"}, func(r io.Reader) error {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			name, rest, labelled := strings.Cut(lines.Text(), "{")
			labels, value, closed := strings.Cut(rest, "} ")
			if !labelled || !closed || !strings.HasSuffix(name, c.counter) {
				continue
			}
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if n == 0 {
				continue
			}
			all += n
			if slices.ContainsFunc(c.good, func(label string) bool { return strings.Contains(labels, label) }) {
				good += n
			}
			seen = append(seen, fmt.Sprintf("%s %g", labels, n))
		}
		return lines.Err()
	})
	if all > 0 {
		share = good / all
	}
	return share, strings.Join(seen, ", "), err
}
