// Package dynamo lets a router follow the workers of NVIDIA Dynamo 1.4 and
// later, which know nothing of Blockyard.
//
// A Transport watches the directory of Dynamo's file discovery backend for the
// workers and event sources of one endpoint, subscribes to that endpoint's
// events on NATS, and asks a source's recovery target for what was lost. To the
// router each data-parallel rank looks like one of our own publishers: it is
// announced once a second with a digest, its events have ids without holes, and
// queries are answered with a dump.
//
// Identity: Dynamo's events name blocks by the engine's own hashes. Each rank
// has a table from those to our SequenceHash, the chain over the events'
// tokens_hash from the root on, so that two workers' blocks of equal content
// are equal here whatever their engines call them. A block whose parent the
// table does not have is an orphan: it is counted and left out.
//
// What is lost: event ids of a source are contiguous. A hole is asked for at the
// recovery target, in up to eight tries over 25 s, while live events wait; an
// answer is the missing events or a dump, which replaces the rank's blocks. A
// source that has been silent for ten seconds, and every source after the
// connection was away, is asked whether there is more than was received. A
// source without a recovery target starts with what comes first and is emptied
// at each hole, as in Dynamo. Until a rank is known to be complete it is
// announced as degraded.
//
// Presence: a rank is there while its worker's model card is. A record is live
// while its file is touched; one that stays as it is for twelve seconds counts
// as left behind. Ages are measured from what this process saw, never from the
// file's time. Two sources for one rank are ambiguous: it is emptied until one
// is left. Nothing in the directory is ever changed.
//
// Bounds: ranks, blocks, waiting events, unclaimed messages, files and their
// sizes, recoveries at a time, bytes of an answer. What exceeds one is counted
// in Counters.
//
// Not covered: discovery by etcd or Kubernetes, Dynamo's ZMQ event plane,
// Dynamo before 1.4, events of residency domains other than "worker" (each
// costs a recovery).
//
// Concurrency: one goroutine owns the ranks; queries of the router share its
// lock for the time of a copy. Another goroutine reads the directory, and one
// more each recovery at hand. Close waits for all of them.
package dynamo
