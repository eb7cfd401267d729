// Package command has the subcommands of blockyard and what every binary of this
// module needs around them: parsing, signals, logs, exit status.
//
//	os.Exit(command.Product(version).Main())
//
// Each subcommand is a struct whose fields are its flags and a method
// Run(ctx context.Context) error. ctx ends on SIGINT or SIGTERM; Run then drains
// and returns nil. A second signal kills the process. SIGHUP has agent and router read
// their settings again, and ends the other commands. The commands of the lab
// (demo, bench, sim-engine) are names here: they run blockyard-lab, which lies
// beside the binary.
//
// A subcommand that serves writes one line of JSON to standard output when it is
// ready, and nothing else there. Logs go to standard error. Their level is --log-level
// or BLOCKYARD_LOG_LEVEL (debug, info, warn, error; default info).
//
// The exit status is 0 when the work is done, 1 when it failed and 2 when the
// command line was wrong; 3 says that doctor found warnings alone. Every error is one line on standard error that begins
// with "blockyard: ".
package command
