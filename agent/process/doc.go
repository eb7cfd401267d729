// Package process watches the processes of engines, and identifies them to the next agent.
//
//	t := process.NewTable()
//	p, err := t.Watch(conn, pid) // p is never nil
//	<-p.Exited()
//	p.Release()
//	p, gone, err := t.Find(id)   // what an earlier agent recorded
//
// A watch is a pidfd: unlike a pid it never comes to mean another process. A process has one
// watch however many connections it has. Its identity on record is pid and start time, which
// no other process of this boot has together. A process that cannot be watched, or whose
// identity is not unique, never counts as gone: who waits for it waits for ever, and shows so.
package process
