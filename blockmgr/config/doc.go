// Package config is the configuration that users of Dynamo's KV block manager (KVBM) know:
// its structs, its rules and its environment variables.
//
//	env, warnings, err := config.FromEnviron(os.Environ())
//	cfg := config.Config{
//		Runtime:    config.Runtime{WorkerID: 1, NIXL: config.DisableNIXL()},
//		Model:      config.Model{NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024},
//		HostLayout: &config.Layout{NumBlocks: blocks, Logical: config.LeaderWorkerSharded},
//	}
//
// Config describes one engine's block manager. Package blockmgr/kvbm opens a manager from
// it, for programs that embed the manager. The agent serves many engines: it has
// agent.Config and takes the environment variables alone.
//
// Variables is the table of all environment variables. docs/kvbm-environment.md is made from
// the table, and FromEnviron reads by it. The table says for each variable what the agent
// does with it, or why nothing.
//
// # Guarantees
//
// Zero values are KVBM's defaults. Everything is a value: nothing opens a file or reads the
// process's environment. Runtime.Context starts a goroutine, which ends with its context.
//
// # Ownership
//
// A Config borrows its hooks, storages and channels. Their owner closes them, after the
// manager has ended. Cancellation may close at any time.
//
// # Failure
//
// A bad value is an error that names field or variable, value and range. No value is
// replaced by a default. FromEnviron reports all bad variables at once. Variables without
// effect and unknown DYN_KVBM_ names are warnings. Warnings repeat no values of unread
// variables, because some are secrets.
package config
