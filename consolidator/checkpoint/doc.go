// Package checkpoint is the file that lets a rank's state survive its agent.
//
// A checkpoint holds the state of one rank at one moment: its position in the engine's
// sequence, the blocks and their counts, the names of adapters and salts, and the parked
// events. It is meant for a tmpfs. The format is in format.go.
//
//	f := checkpoint.NewFile(path, 500*time.Millisecond, &counters, warn)
//	f.Save(now, version, state)           // at most that often, and only after a change
//	saved, err := checkpoint.Parse(bytes, id) // at the next start
//
// Guarantees: a reader sees the old file or the new one, never a mixture. Parse
// accepts a file only if its checksum holds, it is about the same worker, rank, block
// size and incarnation of the engine, and its tables fit together.
//
// Cost: File copies the state on the caller's goroutine and writes it on another one.
// Copying takes at most a 200th of the caller's time. The copy needs as much memory as
// the rank's tables while it is written.
//
// Failure: a file that cannot be written is counted and reported; the next Save tries
// again after a change. A damaged or foreign file is an error of Parse; the rank then
// begins without it.
package checkpoint
