// Package source declares how a router gets the messages of publishers.
//
// A Transport brings the messages of publishers as Frames, and sends queries to
// publishers. Package nats is a Transport over NATS and JetStream, package http one
// over the streams of agents. Package dynamo translates the messages of Dynamo's
// workers. Package registry joins several transports, and announces workers that
// have no publisher.
//
// A Transport may also be a Resumer, a SnapshotStore, a Joiner or Measured. Several
// transports share the rest: Assembly puts the chunks of an answer together,
// CheckAgents checks a list of agents.
package source
