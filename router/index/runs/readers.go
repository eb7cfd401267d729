package runs

import "sync/atomic"

// Readers counts the readers inside, so that the writer knows when no reader can reach
// unlinked memory. Only the parity of the epoch matters: a reader increments the counter of
// the current epoch's parity when it enters, and decrements that counter when it leaves. The
// writer frees unlinked memory once it has seen both parities without readers and has begun
// a new epoch in between. The zero value has no readers.
type Readers struct {
	epoch    atomic.Uint32
	counters [ReaderShards]readerCounter
	// lastShard spreads readers over counters.
	lastShard atomic.Uint32
}

// ReaderShards is the number of counters over which readers are spread.
const ReaderShards = 16

// readerCounter counts the readers inside, by the parity of the epoch in which they
// entered. It fills two cache lines, so that readers on different cores do not share one.
type readerCounter struct {
	inside [2]atomic.Int64
	_      [112]byte
}

// NextShard returns the number of a counter for a new reader.
func (r *Readers) NextShard() uint32 { return r.lastShard.Add(1) % ReaderShards }

// Enter registers a reader. Until the reader leaves, the writer frees no memory that the
// reader can reach. Enter returns the counter from which the reader subtracts 1 when it
// leaves. shard is any number; readers with different shards share no counter.
func (r *Readers) Enter(shard uint32) *atomic.Int64 {
	c := &r.counters[shard%ReaderShards].inside[r.epoch.Load()&1]
	c.Add(1)
	return c
}

// Epoch returns the current epoch.
func (r *Readers) Epoch() uint32 { return r.epoch.Load() }

// BeginEpoch begins the next epoch. Only the writer calls it.
func (r *Readers) BeginEpoch() { r.epoch.Add(1) }

// Empty reports whether all readers that entered in epochs of the same parity as epoch have
// left. The writer asks before it frees memory.
func (r *Readers) Empty(epoch uint32) bool {
	for i := range r.counters {
		if r.counters[i].inside[epoch&1].Load() != 0 {
			return false
		}
	}
	return true
}
