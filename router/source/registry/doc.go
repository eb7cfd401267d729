// Package registry joins transports, and announces workers that have no publisher:
// the workers of a file, and workers that register over HTTP.
//
// New returns a Source over the transports. The Source announces each registered worker
// once a second, unless a publisher announces the worker. The file is read again when it
// changes.
//
// Each transport has a goroutine and the registry one more; Close waits for all.
package registry
