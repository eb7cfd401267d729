// Package registry joins transports and makes workers known that no publisher speaks
// for: those of a file and those that register.
//
// New returns a Source over the transports. The Source announces each registered
// worker once a second, for as long as nobody else announces the worker. A publisher
// always wins. The file is read again when it changes.
//
// Each transport has a goroutine and the registry one more; Close waits for all.
package registry
