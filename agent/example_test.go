package agent_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
)

// An agent with a host tier serves until its context ends.
func Example() {
	dir, err := os.MkdirTemp("", "agent")
	check(err)
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(context.Background())
	a, err := agent.New(ctx, agent.Config{
		Node: "node-1", Socket: filepath.Join(dir, "agent.sock"),
		Tiers: node.Tiers{Config: blockmgr.Config{HostDir: filepath.Join(dir, "host"), HostBytes: 1 << 20}},
	}, zap.NewNop())
	check(err)
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.AdminAddr()+"/healthz", http.NoBody)
	check(err)
	transport := &http.Transport{}
	response, err := transport.RoundTrip(request)
	check(err)
	check(response.Body.Close())
	fmt.Println(a.Stats().Node, "is", http.StatusText(response.StatusCode), "with", a.Stats().Sessions, "engines")
	transport.CloseIdleConnections()
	stop()
	check(<-ended)
	// Output:
	// node-1 is OK with 0 engines
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
