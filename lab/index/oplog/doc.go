// Package oplog reads and writes logs of what engines told a router: blocks
// stored, blocks removed, and the prompts that were asked for in between, with
// the sums that exact answers reach. A log makes two indexes comparable: both get
// the same records in the same order, and both must give the same answers.
//
// # Format
//
// A log is a sequence of little-endian 64-bit words. The first is the name of the
// format, KVOPLOG1; 15 words of header follow:
//
//	0         engines; they are numbered from 0
//	1         tokens in a block
//	2         records
//	3, 4, 5   blocks in stored, removed and query records
//	6         queries
//	7, 8      (block, engine) pairs, and different blocks, held after the last record
//	9, 10     over all queries, each asked where it stands: the sum of all engines'
//	          depths, and that of the deepest ones
//	11, 12    the same for every query asked again after the last record
//	13, 14    0
//
// A record is two words and n items. The first word's low byte is the operation,
// 1 stored, 2 removed, 3 query, and its high half the engine; the low half of the
// second is n. A stored record goes on with the name of the block before the first
// one, 0 at the start of a sequence, and n pairs of a block's SequenceHash and
// LocalHash; a removed one with n SequenceHashes; a query with the n LocalHashes of
// the prompt. The engine of a query is the one it was sent to. The depth of an
// engine is the number of leading blocks of the prompt that it holds.
//
// # Guarantees
//
// Parse checks every field and every total against the header, and returns a Log
// or an error that names record and word; it never panics, whatever it is given.
// It cannot check that answers are right: that is what the log is for. Builder
// makes logs that Parse takes.
//
// A Log gives out slices of its own memory. They are valid until Close and must
// not be changed. Reading is safe for concurrent use.
package oplog
