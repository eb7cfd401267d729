// Package config is the configuration surface that users of Dynamo's KV block
// manager (KVBM) know: its structs, its rules and its environment variables,
// with errors that name the field or variable, its value and what is allowed.
//
// # The structs
//
// Config is the whole: Runtime (who this is, how long it lives, NIXL, metrics),
// Model (the shape of a block), one Layout for each of the device, host and disk
// tiers, and Consolidator. Zero values are the documented defaults; Validate
// reports the first bad field and Warnings what is allowed and probably not
// meant. One thing that KVBM configures has no field: there is no async runtime
// to choose in Go.
//
// The agent serves many engines and is not built from a Config, which is about
// one; it has agent.Config. Config is for programs that embed what KVBM would
// give them, and its hooks are what they hand in; package kvbm makes a block
// manager of it.
//
// # The environment
//
// Variables is the table of every variable, as data for documents and help
// texts; docs/kvbm-environment.md is made from it. FromEnviron reads an
// environment into Env by the same table, so that the two cannot disagree. A
// size is parsed once, into a CacheSize, from which both the number of blocks
// and Env.ShouldBypassCPUCache are derived.
//
// The agent takes these variables, behind its own flags and variables. The table
// says of each what the agent does with it or, where that is nothing, why.
//
// # Ownership and concurrency
//
// Everything here is a value. Nothing opens a file or reads the process's
// environment. Runtime.Context starts a goroutine, which ends with the context
// that it returns; no other call leaves anything behind. A Config borrows its
// hooks, storages and channels: whoever made them keeps and closes them, and,
// but for Cancellation, must not do so before what was configured with them has
// stopped.
//
// # Failure
//
// Bad input is an error; nothing is replaced by a default with a warning, as
// KVBM does. FromEnviron reports all bad variables at once. Variables that have
// no effect, and unknown ones that begin with DYN_KVBM_, are warnings, to be
// logged once at the start. The values of what is not read are never repeated:
// some are secrets.
package config
