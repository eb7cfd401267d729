// Package process watches the processes of engines, and identifies them to the next agent.
//
//	t := process.NewTable()
//	p, err := t.Watch(conn, pid) // p is never nil
//	<-p.Exited()
//	p.Release()
//	p, gone, err := t.Find(id)   // id is of an earlier agent's record
//
// A watch is a pidfd. Unlike a pid, a pidfd never names another process later. All
// connections of a process share one watch. The recorded identity is pid and start time:
// no two processes of one boot have both in common. A process that cannot be watched, or
// whose identity is not unique, never counts as gone. A caller that waits
// for such a process waits without end.
package process
