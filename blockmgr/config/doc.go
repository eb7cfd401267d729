// Package config is the configuration surface that users of Dynamo's KV block
// manager (KVBM) know: its structs, its rules and its environment variables,
// with errors that name the field or variable, its value and what is allowed.
//
// # What the agent uses of it
//
// Nothing yet. The agent is configured by agent.Config and its own flags and
// variables; it neither builds a Config nor reads the variables listed here.
// This package says what their values mean and refuses wrong ones, so that the
// agent can take them over without a second reading of them. The same holds
// for the hooks: they are declared here, where they are configured, and nobody
// calls them.
//
// # The structs
//
// Config is the whole: Runtime (who this is, NIXL, metrics), Model (the shape
// of a block), one Layout for each of the device, host and disk tiers, and
// Consolidator. Zero values are the documented defaults; Validate reports the
// first bad field and Warnings what is allowed and probably not meant. Two
// things that KVBM configures have no field. Cancellation is the
// context.Context that whoever runs the manager passes when it starts: a
// context is not stored. And there is no async runtime to choose in Go.
//
// # The environment
//
// Variables is the table of every variable, as data for documents and help
// texts; docs/kvbm-environment.md is made from it. FromEnviron reads an
// environment into Env by the same table, so that the two cannot disagree. A
// size is parsed once, into a CacheSize, from which both the number of blocks
// and Env.ShouldBypassCPUCache are derived.
//
// # Ownership and concurrency
//
// Everything here is a value. Nothing starts a goroutine, opens a file or reads
// the process's environment, and nothing is kept after a call returns. A Config
// borrows its hooks, storages and channel: whoever made them keeps and closes
// them, and must not do so before what was configured with them has stopped.
//
// # Failure
//
// Bad input is an error; nothing is replaced by a default with a warning, as
// KVBM does. FromEnviron reports all bad variables at once. Variables that have
// no effect, and unknown ones that begin with DYN_KVBM_, are warnings. Values
// of variables that have no effect are never repeated: some are secrets.
package config
