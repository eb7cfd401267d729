// Package source declares how a router gets the messages of publishers.
//
// A Transport delivers the messages of publishers as Frames, and sends queries to
// publishers. Package nats is a Transport over NATS and JetStream. Package http is a
// Transport over the HTTP streams of agents. Package dynamo translates the messages of
// Dynamo's workers. Package zmq follows engines without an agent. Package registry joins
// several transports, and announces workers that have no publisher.
//
// A Transport may also be a Resumer, a SnapshotStore, a Joiner or Measured. Transports
// share Assembly, which joins the chunks of an answer, and CheckAgents, which checks a
// list of agents.
package source
