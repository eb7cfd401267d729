// Package top is "blockyard top": it shows a router and its agents in a terminal, and how they
// change.
//
//	c := top.Command{Router: "127.0.0.1:8090", Every: 2 * time.Second, Once: true}
//	err := c.Run(ctx, os.Stdout)
//
// A Command asks the servers for their state every period (/v1/feeds, /v1/workers, /v1/agents and
// /metrics of the router, /v1/stats of agents) and shows differences as rates. Without --agent it
// takes the agents that the router follows over HTTP. docs/watch.md explains the screen.
//
// Guarantees: it changes nothing at the servers. A server that does not answer is named on the
// screen, and the others are shown. What servers say is escaped before it reaches the terminal.
// It asks at most 64 agents, and an answer has at most 64 MiB. A Command belongs to one goroutine.
package top
