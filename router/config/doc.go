// Package config has the settings of a router: every setting of NVIDIA Dynamo's KV router
// in three generations, and a few of Blockyard's own.
//
//	loaded, err := config.Resolve(config.Sources{Document: document, Environ: os.Environ(), Flags: flags})
//	loaded.Config  // the settings
//	loaded.Notices // what is deprecated or has no effect, for the log
//	loaded.Given   // each value that is not a default, with its source
//
// Config has a field for each setting. Start from Default, because zero is a meaningful
// value of most settings. Settings is the table of all settings: names, default, accepted
// values and effect. docs/router-config.md is generated from the table.
//
// # Sources
//
// Resolve combines a document, an environment and flags. A flag wins over a variable, a
// variable over the document, and the document over the default. Override replaces settings
// for one request.
//
// # Failure
//
// An unknown field, a value out of range and two contradicting values are errors. Each error
// names the field, the value and the accepted values. A value of Dynamo that Blockyard does
// not support yet is a NotYetError. An accepted setting without effect is a Notice.
//
// # Ownership and concurrency
//
// No function keeps its arguments. The package opens no file and does not read the process's
// environment. Several goroutines may read one Config.
package config
