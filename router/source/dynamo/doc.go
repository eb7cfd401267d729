// Package dynamo lets a router follow the workers of NVIDIA Dynamo 1.4 and later.
//
// A Source watches the directory of Dynamo's file discovery backend for the workers and
// event sources of one endpoint. It subscribes to the endpoint's events on NATS. It
// queries a source's recovery target for lost events. To the router, each data-parallel
// rank is a native publisher: announced once a second with a digest, with event ids
// without gaps. Queries are answered with a dump.
//
// Identity: Dynamo's events name blocks by the engine's hashes. Each rank has a table from
// those hashes to our SequenceHash, the chain over the events' tokens_hash. Blocks of equal
// content are therefore equal for all workers. A block with an unknown parent is an orphan:
// it is counted and left out.
//
// Losses: the Source queries for a gap in up to eight attempts over 25 s, while live events
// wait. It also queries a source that was silent for ten seconds, and every source after
// an outage. A source without a recovery target begins with the first event. As in Dynamo,
// a gap empties its rank. A rank is announced as degraded until it is complete.
//
// Presence: a rank exists while its worker's model card does. A record that nobody touched
// for twelve seconds is stale. Ages use the local clock, never the file's time. A rank with
// two sources is emptied until one is left. The directory is only read.
//
// Bounds: ranks, blocks, waiting events, unclaimed messages, files and their sizes,
// recoveries in progress, bytes of an answer. Counters counts what exceeds a bound.
//
// Not covered: discovery by etcd or Kubernetes, Dynamo's ZMQ event plane, Dynamo before
// 1.4, and events of residency domains other than "worker". Each such event costs a
// recovery.
//
// One goroutine owns the ranks, one reads the directory, and each recovery has one. Close
// waits for all of them.
package dynamo
