// Package tenant tells which tenant a client of the front door belongs to, by its API key.
//
//	keys, err := tenant.Open(path, log)
//	client, err := keys.Client(request.Header)
//
// A keys file has one JSON object on each line; docs/front-door.md describes the members.
// The file has SHA-256 hashes and no keys. Open returns an error with the line and the
// member. A changed file is applied within a second of the next request. A bad file keeps
// the keys of before and is logged once.
//
// Without a file, Client returns the tenant "" with the rights of everybody.
//
// Guarantees: the time to look up a key says nothing about the keys of the file. No error
// shows a key. Keys may be used from any goroutine.
package tenant
