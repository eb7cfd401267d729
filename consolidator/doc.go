// Package consolidator follows the KV events of one engine rank and turns them into
// one gap-free, tier-true stream.
//
// A Rank owns the ZMQ sockets of one worker rank. It receives frames, repairs gaps by
// replay, translates the engine's hashes and changes the rank's residency.Stream:
//
//	s := residency.NewStream(kv.WorkerOwner(w), sink)
//	r, err := consolidator.NewRank(consolidator.RankConfig{
//		Worker: w, BlockSize: 16,
//		EventsEndpoint: "tcp://127.0.0.1:5557", ReplayEndpoint: "tcp://127.0.0.1:5558",
//	}, s)
//	err = r.Run(ctx)
//
// The parts are packages:
//
//	sequence    which frames are applied, replayed or lost
//	mirror      the blocks that the engine has cached, by its own hashes
//	residency   streams, and merged streams of a worker and its pool
//	checkpoint  the file that lets a rank's state survive its agent
//	tokens      the tokens of blocks, for formats that carry them
//	dense       the hash table of blocks
//
// Guarantees: the stream never claims a block that the engine's events do not prove.
// Every batch is applied once and in order, or its loss is known. After a loss that no
// replay repairs, the engine's list of cached blocks (RankConfig.Cached) tells what is
// still there. Without a list every block is forgotten. The stream is degraded while
// it may differ from the engine, and before the engine has been reached once.
//
// Concurrency: Run owns the sockets and the rank's tables in one goroutine. Stats may
// be called from anywhere. No ZMQ type leaves this package.
//
// Failure: no input makes a Rank stop. Frames and events that cannot be used are
// counted by reason, and logged at most once a second. Run returns when its context
// ends, or when its sockets cannot be made or fail: then the stream is empty and
// degraded.
package consolidator
