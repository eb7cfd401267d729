// Command blockyard is every part of Blockyard in one binary: the node agent,
// the router, the demonstration that runs both, and the simulated engine that
// the demonstration starts.
//
// Each subcommand has one file: a struct whose fields are its flags and a
// method Run(ctx context.Context) error. ctx ends on SIGINT or SIGTERM; Run
// then drains and returns nil, but for the demo: it has stopped its processes and
// removed its files by then, but what it was to show it has not shown, so that an
// interrupted demo is an error and its exit status 1. A second signal kills the
// process.
//
// A subcommand that serves writes one line of JSON to standard output when it
// is ready, and nothing else there. Logs go to standard error; their level is
// taken from BLOCKYARD_LOG_LEVEL (debug, info, warn, error; default info).
//
// Exit status: 0 done, 1 the work failed (or a demo was interrupted), 2 the
// command line was wrong. Every
// error is one line on standard error that begins with "blockyard: ".
package main
