// Package zmq brings the KV events of engines that have no agent, over ZMQ, in vLLM's
// and SGLang's format.
//
//	s, err := zmq.New(zmq.Options{})
//	err = s.Follow(source.Engine{Worker: 7, Model: "m", BlockSize: 16,
//		Ranks: []source.EngineRank{{Events: "tcp://a:5557", Replay: "tcp://a:5558"}}})
//	r, err := router.New(options, s)
//
// Each rank of an engine has the parts that an agent would give it: a consolidator.Rank
// reads the sockets, a residency.Stream holds the blocks, a publisher.Feed announces
// them. The frames of the feed go to the router in this process. Query asks the feed.
//
// Guarantees: those of the three packages. The router never believes a block that the
// engine's events do not prove. A rank is degraded until its engine was reached, and
// while something is missing. Announcements come once a second, whether the engine is
// there or not: only Unfollow and Close make its worker leave. So the caller judges the
// health of the server.
//
// Locks: Source.mu is a leaf. It is let go before a stream or a feed is called.
//
// Ownership: each rank has two goroutines, which end at Unfollow and Close. Close waits
// for all of them, Unfollow for none. Any goroutine may call the methods.
//
// Failure: an engine that is absent is no error. Sockets that fail are opened again with
// growing pauses. Follow refuses more ranks than the process has file descriptors for,
// because libzmq aborts the process when it finds none.
package zmq
