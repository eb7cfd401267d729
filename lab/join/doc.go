// Package join measures how a router that starts late reads the blocks of a large fleet over a slow link.
//
//	err := join.Run(ctx, join.Options{Agents: 1000, Engines: 8, Blocks: 2000, LinkBytes: 50 << 20, Programs: programs, NATSServer: path})
//
//	fleet ──NATS──► nats-server ──throttled link──► router
//
// Each is a process, and the link is a TCP proxy in this one. The fleet is one process with a connection for
// each agent, and a publisher for each engine and each agent's pool, as real agents have. Only the blocks are
// made up. Engines hold documents of which some are common.
//
// The router starts when every publisher has announced itself. The join is over when each feed is exact and
// the index has every block. Run prints its time beside the time that the link needs for as many bytes, the
// router's peak memory, and cuts: lost connections, dropped messages and dumps that broke off.
//
// Run owns its processes and directories. It ends its goroutines before it returns.
package join
