// Package readahead begins the disk reads that routers' hints ask for, before an engine does.
//
//	q := readahead.New(log)
//	go q.Run(ctx)
//	q.Add(pool, data) // an encoded kvevent.ReadAhead
//
// # Guarantees
//
// A hint begins reads and has no other effect. blockmgr.Pool.Prefetch bounds the reads, and each is
// shared with the lookups of its block. Add never waits: at most 32 hints wait for Run, and the
// others are dropped. Each hint is counted as taken, dropped or bad.
//
// # Ownership
//
// A Queue keeps the bytes of a hint until its turn. The pool may be closed meanwhile; the hint then
// reads nothing.
package readahead
