// Package session keeps the requests of a session on one worker.
//
//	sessions := session.New(10 * time.Minute)
//	lease := sessions.Begin(session.Key{Model: "m", ID: id}) // id of session.ID
//	defer lease.End(false)
//	if w, bound := lease.Worker(); bound { ... } // send the request there
//	lease.Bind(w, chosen)                        // the worker that serves the request
//
// A session is a conversation or an agent's run: requests with one id, of one tenant and
// model. The first request binds the session to the worker that serves it. The binding ends
// when the session has been silent for the time to live, when a request says that it is the
// last one, and when the caller binds another worker because the first is gone or too busy.
//
// A Table has at most 65,536 sessions. The one that has been silent longest makes room. A
// session with a request in progress does not expire. A Table is safe for concurrent use and
// starts no goroutine.
package session
