// Package source is the contract between a router and where its messages come from.
//
// A Transport brings the messages of publishers as Frames and takes questions to
// them. Package nats is one over NATS and JetStream, package http one over the
// streams of agents, package dynamo one that restates Dynamo's workers. Package
// registry joins several and makes workers known that no publisher speaks for.
//
// A transport may also be a Resumer that keeps messages, a SnapshotStore, a Joiner,
// or Measured. What several transports need is here too: Assembly puts the chunks of
// an answer together, CheckAgents checks a list of agents.
package source
