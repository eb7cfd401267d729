// Package descriptors divides the file descriptors of the agent's process (RLIMIT_NOFILE).
//
//	budget, err := descriptors.Divide(needs) // after everything else is open
//	budget.Log(log)
//	n := budget.Connections()                // of engines
//	err = budget.Reserve(20)                 // for the event streams of a session
//	budget.Release(20)
//
// libzmq aborts the process when it finds no descriptor for a context or a socket. Everything
// that others can make the agent open therefore has a bound: engines' connections, event
// streams, HTTP connections (LimitListener), clients of the embedded NATS server. A refusal by
// Reserve may be retried.
package descriptors
