// Package config is how the router is configured: every setting of NVIDIA
// Dynamo's KV router, of three generations, and a few of ours, with one table
// that says of each its names, default, range and what it does here.
//
// # The settings
//
// Config has a field for each; Default is where to start, since zero means
// something in most of them. Settings is the table: the name in JSON, the flags
// and environment variables, the values that are taken, those that are known and
// not there yet. docs/router-config.md is made from it.
//
// # Where values come from
//
// ParseJSON reads a document, FromEnviron an environment, and Resolve puts a
// document, an environment and flags on top of one another: a flag wins over a
// variable, a variable over the document, the document over the default. All
// three read a value by the same rules, so what is wrong in one is wrong in all.
// Override is what one request may change.
//
// # What cannot be done
//
// An unknown field, a value out of range and two values that contradict each
// other are errors that name field, value and what is allowed. A value that Dynamo
// knows and Blockyard does not have yet is a NotYetError. What is taken and has
// no effect is a Notice: nothing is passed over in silence. Validate reports
// what no field can be blamed for alone.
//
// # Ownership and concurrency
//
// Everything here is a value and nothing keeps what it is given. No file is
// opened and no variable read but those handed in. A Config that nobody changes
// may be used by many goroutines.
package config
