// Package dynamo lets routers of NVIDIA Dynamo read what a node holds, without a
// Dynamo process on the node: it writes their event plane (NATS), their discovery
// records (the file backend) and answers their recovery queries (the TCP request
// plane), in the form of Dynamo 1.6. Routers before 1.4 read another form.
//
// A Plane is one Dynamo endpoint: a namespace, a component and an endpoint name. A
// Source is one worker rank on it, with an id of its own that is new at every
// start. The worker's own KV event publisher must be off: two sources for one rank
// make the routers ignore both.
//
// # What a router sees
//
// The events of a merged stream, which holds what the worker rank can reach, with
// block_hash the SequenceHash and tokens_hash the LocalHash of a block, and tier
// device, host_pinned, disk or external. Their ids are not the stream's: a source
// numbers what it sends from 1, because it may have to say more than the stream
// did. A cleared event leaves the residency domain out, by which it empties the rank
// at once, whatever the router waits for.
//
// A router notices a lost message by a hole in the ids. One second after the last
// event a source sends an empty one, and others 2 s, 4 s … and then every minute
// after that, so that the loss of the last message is noticed too. What the router
// does then depends on the record that it found:
//
//   - with a recovery server that answers (recoverable), it asks for what it missed
//     and gets the events, of which the last 1,024 are kept, or a dump;
//   - without (live-only), it empties the rank. The source therefore says everything
//     again, 1 s, 3 s, 7 s … after its start and then about once a minute.
//
// When events could not be sent (the connection was away for too long, refused one,
// or was slower than the stream) the source sends a cleared event and everything
// that is resident, in both modes: nothing is trusted that may be wrong, and no
// router needs to ask. What is said again is paced: 100 MiB a second after the first
// 32 MiB. The same happens when a dump is larger than the 32 MiB that
// an answer may have.
//
// A router keeps device blocks in a tree: it forgets what lies behind a removed block
// and refuses what has no parent. When a middle block comes back alone, our own index
// knows its descendants again and Dynamo's does not, until they are said again.
//
// # Files
//
// The discovery directory holds one file for each record, and a file that was not
// touched for ten seconds is deleted by its readers. Plane writes its own (to a name
// in the directory itself, then renamed), touches them every 3 s, writes those anew
// that were deleted while this process stood still, and removes them when it ends.
// It never changes another file, and reads those beside its own to say when somebody
// else speaks for one of its ranks. After a crash the old record lives up to ten seconds
// more, in which the routers ignore the rank. The etcd and Kubernetes backends of
// Dynamo are not covered, nor is its ZMQ event plane.
//
// # The recovery server
//
// What comes in is hostile until it is decoded: connections (altogether and of one
// address), frames, requests under way and the time each may take are bounded. An answer goes to the address that the
// request names, on a connection that the server opens. Such an address must be the
// requester's own, by IP address, or both must be this machine's, unless
// Options.AnyDialBack says otherwise: else anybody could have this process speak with
// anything it reaches.
//
// # Locks
//
// A source's turn lock (who numbers and sends), then the stream's own locks, then
// the source's inbox. Publish takes only the last, so that it may be called under a
// stream's lock; it never blocks.
//
// # Failure
//
// Every loss has a counter (SourceStats, PlaneStats). The inbox of a source is
// bounded by 4,096 events and 256 Ki blocks; what it drops is repaired as above.
package dynamo
