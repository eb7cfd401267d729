// Package dense provides a hash table from 64-bit keys to values without
// pointers.
//
// A Table serves tens of millions of blocks. The garbage collector never scans
// it. An entry costs 5 to 7 bytes besides its key and its value.
//
//	var t dense.Table[count]
//	slot, ok := t.Insert(key) // false: 64 Mi entries
//	t.At(slot).n++
//	t.Remove(slot)
//
// Slots. An entry keeps its slot until Remove, so that other tables can store the
// slot in place of the key. A free slot holds the zero value. A caller that walks
// all slots needs a value that tells a free slot from an entry:
//
//	for slot := range t.Slots() {
//		if t.At(slot).n != 0 { // not a free slot
//
// Views. View returns the entries of one moment. It copies pointers to chunks of
// 512 entries, and no entries. While a view is open, Unshare copies the chunk of an
// entry before the entry changes, once for each view. Insert and Remove call Unshare
// themselves; a caller that changes a value in place calls it first.
//
// Layout. Entries lie in chunks that never move. The index has 256 shards, each an
// open-addressing table ordered by distance from home (Robin Hood). Only the
// growth of a shard reads entries; its pause is that of one shard.
//
// Concurrency: a Table belongs to its owner's lock. A View may be read by another
// goroutine without that lock.
//
// Failure: Insert reports false when the table is full. Nothing else can fail.
package dense
