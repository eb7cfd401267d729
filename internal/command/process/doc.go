// Package process has what a command that runs for long needs of its process: a context that ends by
// signals, a logger, the ready line, and the reload of settings at SIGHUP.
//
//	ctx, hangups, stop := process.SignalContext()
//	defer stop()
//	r := process.Reloader{Log: log, Now: process.ValuesOf(flags), Live: live, Read: read}
//	r.Run(ctx, hangups.Take())
//
// # Guarantees
//
// A reload takes over all live settings or none. The log has the names of changed settings and never
// their values. A setting that is not live is named, at each reload, until the next start.
//
// SIGHUP ends the context while no command has taken the signals, and when the process's terminal has
// closed. Under nohup it is ignored.
//
// # Failure
//
// Settings that cannot be read, or are invalid, are one error line with the reason. The process goes on.
package process
