// Package agent is the composition root of a node: it joins the block manager,
// the consolidator and the publisher, and serves the engines of the node.
//
// # What it guarantees
//
// An engine session holds pins and grants only as long as its connection lives;
// a session that ends without BYE leaves its granted slots in quarantine until
// every process of the session is gone, because a dying worker may still be
// copying. A process has one watch, and a bounded number of such sessions, however
// often it comes back. The processes of a session are on record before their
// WELCOME leaves; the next agent waits for them, or until their scheduler comes
// back with RESUME, before anybody else gets what the session held. A namespace has
// a pool only where the node has room for it. Whatever a client sends, only its own
// connection can suffer: bodies are checked before they are used, every list, table
// and wait is bounded, and a client that does not read is cut off. A panic while a session
// is served ends that session as if its connection had ended: it is counted and logged with
// its stack, and the other sessions go on.
//
// # Parts and who owns them
//
// Agent owns everything and nothing outlives its Run:
//
//	Agent ── tierRoom             what the tiers take, and what the node has
//	      ── blockmgr.Manager     the pools
//	      ── outputs              where events are told: NATS and the server that may run
//	                              inside, the HTTP hub, Dynamo's plane, the token table
//	      ── eventHub             one stream per pool and per worker rank, their feeds
//	         ── reach             what one rank and its pool hold together, for an output
//	                              that knows workers only
//	      ── sessionServer        the socket, its connections and sessions
//	         ── formerSessions    those of an earlier agent, and waits for their processes
//	         ── connectorReports  what connectors count themselves, by worker rank
//	         ── descriptors       file descriptors, for connections and event streams
//	      ── evictionTap          what leaves a tier, for the sessions that asked for it
//	      ── adminServer          HTTP: health, metrics, stats, dumps, control of pools
//	      ── adminServer          HTTP: KVBM's metrics, when they are wanted
//
// A connection has one goroutine that reads it and one that announces extents;
// to a worker the latter also sends the LOADs, from a bounded queue, so that no
// worker delays its scheduler. A scheduler that asked for EVICTED has one more, with
// a bounded queue. LOOKUPs that wait have goroutines of their own, a bounded number
// per session. Who asks for an engine's cached hashes waits in its own goroutine, for
// a bounded time and number of hashes, and no longer than the session lives.
//
// What a rank knows is kept in a file for the next agent, under the engine's incarnation
// and namespace. The file goes when the engine says BYE to an agent that stays, or when
// all its processes have exited; files of ranks that live are never removed to make
// room. A stream that cannot be made (Dynamo's directory, a port that another rank has)
// costs the engine that stream, and WELCOME has a warning for its log.
//
// # Locks
//
// A lock may be taken while holding one to its left:
//
//	session.mu ─► processTable.mu
//	link.mu ─► blockmgr.Pool's ─► eventHub.mu
//	        │                 └─► residency.Stream's ─► nats.Feed's ─► nats.go's
//	        │                 │   (a worker's or a pool's)
//	        │                 └─► evictionQueue.mu
//	        └─► proto.Conn's
//	a worker's residency.Stream's ─► residency.Merged's ─► a sink's
//	                                    └─► tokens.Table's
//	tierRoom.checking ─► tierRoom.mu
//	sessionServer.mu, formerSessions.mu, cacheCounters.mu, connectorReports.mu, evictionTap.mu, cachedLists.mu, checkpoints.mu
//
// eventHub.mu and those of the last line are held for a look at their maps and no
// lock is taken under them: the hub lets go before it calls a stream. checkpoints.mu is
// held while its directory is looked at, which delays the start and the end of
// sessions alone. No lock of the
// agent is held while a pool is opened, a grant or a pin is made, or a socket is
// waited for, but link.mu, which only delays its own connection. tierRoom.checking
// is held while file systems are looked at, which only delays the first sessions
// of other namespaces. Sessions that need a pool which another one is opening wait
// for a channel. What a scrape shows of file systems was looked at before, in the
// background, so that one that hangs hangs nothing else.
//
// # Start and stop
//
// New checks the whole configuration and then starts in this order: outputs, block
// manager (sizes are compared with what the node has, as far as they are known
// without a block size; it locks its directories),
// agent socket and the waits for former sessions, admin sockets. It undoes that
// when a step fails or its context ends between two steps. Run then serves.
// When its context ends: the agent says that it is not ready, stops accepting and
// tells schedulers to drain; when their sessions have ended, or Config.DrainTimeout
// has passed, connections close and what is left of sessions ends; ranks and feeds end,
// which tells the routers that these owners are gone; the block manager writes
// what is queued for disk; outputs and the admin servers close last. Both tiers stay
// for the next start, the host tier unless it is to be discarded. An agent that is
// killed leaves the same but for blocks that were not sealed.
//
// # Failure
//
// A process that cannot be watched never counts as gone, and that /proc does not
// show it proves nothing: what it held stays out of use, and a gauge shows it. RESUME proves itself by its process, so that such an
// engine cannot resume either. Without NATS the agent serves its engines and tells events over HTTP
// and ZMQ alone. A rank whose events cannot be followed costs its worker its device residency in
// the router and nothing else.
package agent
