// Package cluster runs agents, simulated engines, a router and a NATS server on one
// machine, for scenarios and tests. Each is a process of the program that users run.
//
//	dirs, err := cluster.MakeDirs("blockyard-demo", "", "", 0)
//	c := cluster.New(cluster.Options{Programs: programs, Dirs: dirs, NATSServer: path})
//	defer c.Close(0)
//	nats, err := c.StartNATS(ctx)
//	agent, err := c.StartAgent(ctx, cluster.AgentOptions{Node: "node-1", HostBytes: 8 << 20})
//
// A Supervisor starts any program: its output is lines, its standard error a log. No
// process outlives the scenario, however the scenario ends. A scenario may kill a
// process and start another one under the same name.
//
// Parts.Settle waits until a cluster is idle. It compares the router's index with the blocks
// that engines and pools hold.
//
// Processes are for one goroutine. HTTP calls (Endpoint) are for any number. Errors
// name the process; a Failure carries the end of its log.
package cluster
