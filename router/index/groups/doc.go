// Package groups is the part of the router's index for KV groups other than the primary one: a
// table of which owner holds which block of which group.
//
//	var t groups.Table
//	t.Store(groups.Block{Hash: h, Group: 1}, owner, kv.TierDevice, mayGrow)
//	held := t.Holds(groups.Block{Hash: h, Group: 1}, owner)
//
// A block is named by the block of the primary group at which it ends. The table is
// empty for a model without such groups.
//
// Guarantees: Holds takes no lock, never waits and allocates nothing. It sees a change
// completely or not at all.
//
// Concurrency: one goroutine at a time may change the table. Holds may be called by any
// goroutine at any time. An owner's number may be given to another owner after DropOwner,
// once no reader asks for the first one any more.
//
// Memory: 16 bytes for a slot, one for each block and owner that the table ever held since
// it was last rebuilt. A table is rebuilt, without the removed blocks, when three quarters
// of its slots are used. It grows only as far as its caller allows.
package groups
