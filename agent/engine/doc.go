// Package engine serves the engines of a node over the connector protocol
// (docs/protocol.md).
//
//	l, err := socket.Listen("/run/blockyard/agent.sock", false, log)
//	s := engine.New(cfg, pools, hub, files, l, log)
//	err = s.Run(ctx)
//	s.Close()
//
// # Guarantees
//
// A session holds pins and grants only as long as its connection lives. After an end without
// BYE its granted slots stay in quarantine until every process of the session has exited: a
// dying worker may still be copying. The processes of a session are on record before WELCOME
// leaves; the next agent waits for them, or until their scheduler says RESUME. Whatever a
// client sends, only its own connection suffers. A panic ends its session and not the agent.
//
// # Parts
//
// Server accepts connections. A scheduler's connection makes a session, workers join it.
// Each connection has one goroutine that reads and one that announces extents and sends
// LOADs from a bounded queue. A client that does not read is cut off.
//
// # Locks
//
// session.mu comes before process.Table's; link.mu before blockmgr.Pool's and proto.Conn's.
// Server.mu and the others are leaves. Only link.mu is held across a socket write.
//
// # Failure
//
// A process that cannot be watched never counts as gone; its slots stay out of use and a
// gauge shows them. An engine whose event streams cannot be opened keeps its cache and gets
// a warning in WELCOME.
package engine
