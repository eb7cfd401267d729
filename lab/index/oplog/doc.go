// Package oplog reads and writes op logs: the blocks that engines stored and removed,
// the prompts that were asked for in between, and the sums of exact answers. A log makes
// two indexes comparable: both get the same records and must give the same answers.
//
//	log, err := oplog.Open("base.log")
//	defer log.Close()
//	for n, record := range log.Records() { ... }
//
// docs/formats.md has the format. Builder makes logs.
//
// Parse checks every field and every total against the header. Its error names record
// and word; it never panics. It cannot check the answers, which an index must match.
//
// A Log returns slices of its own memory. They are valid until Close and must not be
// changed. Reading is safe for concurrent use.
package oplog
