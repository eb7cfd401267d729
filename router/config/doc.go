// Package config holds the settings of a router: every setting of NVIDIA
// Dynamo's KV router in three generations, and a few of Blockyard's own.
//
//	loaded, err := config.Resolve(config.Sources{Document: document, Environ: os.Environ(), Flags: flags})
//	loaded.Config  // the settings
//	loaded.Notices // what is deprecated or has no effect, for the log
//	loaded.Given   // each value that is not a default, with its source
//
// Config has a field for each setting. Begin with Default, because zero is a
// meaningful value of most settings. Settings is the table of all settings: names,
// default, range and effect. docs/router-config.md is made from the table.
//
// # Sources
//
// ParseJSON reads a document and FromEnviron an environment. Resolve combines a
// document, an environment and flags. A flag wins over a variable, a variable over
// the document, and the document over the default. All sources follow the same
// rules. Override replaces settings for one request.
//
// # Failure
//
// An unknown field, a value out of range and two values that contradict each other
// are errors. Each error names the field, the value and what is allowed. A value
// that Dynamo knows and Blockyard does not have yet is a NotYetError. A setting
// that is accepted and has no effect is a Notice.
//
// # Ownership and concurrency
//
// Everything here is a value, and no function keeps its arguments. The package
// opens no file and does not read the process's environment. Several goroutines
// may use a Config that nobody changes.
package config
