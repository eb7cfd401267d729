// Package reload keeps the parsed content of files that people and tools replace while a
// process runs, such as keys and certificates.
//
//	keys, err := reload.Open([]string{path}, parse, func(err error) { log.Error("…", zap.Error(err)) })
//	keys.Get()
//
// Open fails when the files cannot be read or parsed. Later, [Files.Get] looks at the files
// at most once a second and parses them again after a change. Files that are bad keep the
// last good value, and their error is reported once.
//
// A file is at most 16 MiB and regular. A symbolic link is followed, so that a Kubernetes
// secret is seen to change. Several files that belong together may be replaced one after
// the other: parse must return an error for files that do not fit.
//
// Values may be used from any goroutine. Nothing runs in the background.
package reload
