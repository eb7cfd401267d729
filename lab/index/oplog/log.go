package oplog

import (
	"fmt"
	"iter"
	"unsafe"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// magic is KVOPLOG1 in the order of the file.
const magic = uint64('K') | 'V'<<8 | 'O'<<16 | 'P'<<24 | 'L'<<32 | 'O'<<40 | 'G'<<48 | '1'<<56

const (
	// headerWords are the name and the header.
	headerWords = 16
	// The places of header fields, counted from the name.
	wordEngines, wordTokens, wordRecords = 1, 2, 3
	wordStored, wordRemoved, wordQueried = 4, 5, 6
	wordQueries, wordAnswers, wordZeros  = 7, 8, 14

	// MaxEngines and MaxBlockTokens bound the first two header fields.
	MaxEngines     = 1 << 16
	MaxBlockTokens = 1 << 16
)

// Answers are the sums of an exact index.
type Answers struct {
	// Memberships is the number of (block, engine) pairs held after the last record,
	// Distinct the number of different blocks among them.
	Memberships, Distinct uint64
	// Score sums the depths of all engines over all queries, each asked at its place.
	// Best sums the depths of the deepest engines. FinalScore and FinalBest are the
	// same for all queries after the last record.
	Score, Best, FinalScore, FinalBest uint64
}

// Header describes the contents of a log.
type Header struct {
	// Engines is the number of engines, BlockTokens the tokens of a block.
	Engines, BlockTokens int
	// Records counts all records, Queries the queries. The other fields count the
	// blocks in records of each kind.
	Records, Queries         uint64
	Stored, Removed, Queried uint64
	Answers                  Answers
}

// Op is the kind of a record.
type Op uint8

// The operations, by their numbers in a log.
const (
	Stored Op = 1 + iota
	Removed
	Query
)

// Record is one operation. Only the slice of its Op is set, and Parent with Blocks;
// Parent 0 means that the first block starts a sequence.
type Record struct {
	Op      Op
	Engine  uint32
	Parent  kv.SequenceHash
	Blocks  []kvevent.StoredBlock
	Removed []kv.SequenceHash
	Locals  []kv.LocalHash
}

// Log is a checked log.
type Log struct {
	header Header
	words  []uint64
	unmap  func() error
}

// Header returns the log's header.
func (l *Log) Header() Header { return l.header }

// Records iterates over the records in order, with their numbers from 0. The record is
// reused; its slices are the log's own.
func (l *Log) Records() iter.Seq2[int, *Record] {
	return func(yield func(int, *Record) bool) {
		var r Record
		for i, at := 0, headerWords; at < len(l.words); i++ {
			at += r.read(l.words[at:])
			if !yield(i, &r) {
				return
			}
		}
	}
}

// read sets r to the record at the start of words and returns its length in words. Parse has
// checked the record.
func (r *Record) read(words []uint64) int {
	*r = Record{Op: Op(words[0]), Engine: uint32(words[0] >> 32)}
	n := int(uint32(words[1]))
	items := words[2:]
	switch r.Op {
	case Stored:
		r.Parent = kv.SequenceHash(items[0])
		r.Blocks = as[kvevent.StoredBlock](items[1 : 1+2*n])
		return 3 + 2*n
	case Removed:
		r.Removed = as[kv.SequenceHash](items[:n])
	case Query:
		r.Locals = as[kv.LocalHash](items[:n])
	}
	return 2 + n
}

// as converts words to values of one or two words each, without a copy.
func as[T kv.SequenceHash | kv.LocalHash | kvevent.StoredBlock](words []uint64) []T {
	if len(words) == 0 {
		return nil
	}
	n := len(words) * 8 / int(unsafe.Sizeof(*new(T)))
	return unsafe.Slice((*T)(unsafe.Pointer(&words[0])), n)
}

// Parse returns the log that words are, after it has checked the header and every record. The
// words must not change afterwards.
func Parse(words []uint64) (*Log, error) {
	if len(words) < headerWords {
		return nil, fmt.Errorf("op log: %d words, want %d of header at least", len(words), headerWords)
	}
	if words[0] != magic {
		return nil, fmt.Errorf("op log: word 0 is %#x, want %#x (KVOPLOG1)", words[0], magic)
	}
	l := &Log{words: words}
	if err := l.header.read(words); err != nil {
		return nil, err
	}
	var got Header
	for at := headerWords; at < len(words); {
		n, err := got.count(words[at:], uint32(l.header.Engines))
		if err != nil {
			return nil, fmt.Errorf("op log: record %d at word %d: %w", got.Records, at, err)
		}
		at += n
	}
	return l, l.header.compare(&got)
}

// read sets h to the header at the start of words. The error names the word that is out of range.
func (h *Header) read(words []uint64) error {
	for _, f := range []struct {
		name     string
		at       int
		low, max uint64
	}{
		{"engines", wordEngines, 1, MaxEngines}, {"tokens in a block", wordTokens, 1, MaxBlockTokens},
		{"reserved", wordZeros, 0, 0}, {"reserved", wordZeros + 1, 0, 0},
	} {
		if v := words[f.at]; v < f.low || v > f.max {
			return fmt.Errorf("op log: word %d (%s) is %d, want %d to %d", f.at, f.name, v, f.low, f.max)
		}
	}
	a := words[wordAnswers:]
	*h = Header{
		Engines: int(words[wordEngines]), BlockTokens: int(words[wordTokens]),
		Records: words[wordRecords], Queries: words[wordQueries],
		Stored: words[wordStored], Removed: words[wordRemoved], Queried: words[wordQueried],
		Answers: Answers{a[0], a[1], a[2], a[3], a[4], a[5]},
	}
	return nil
}

// count checks the record at the start of words, adds it to the totals of h, and returns its
// length in words. engines is the number of engines of the log.
func (h *Header) count(words []uint64, engines uint32) (int, error) {
	if len(words) < 2 {
		return 0, fmt.Errorf("word 1 (items) is missing")
	}
	op, n := Op(words[0]), uint64(uint32(words[1]))
	if words[0]>>8&0xffffff != 0 || words[1]>>32 != 0 {
		return 0, fmt.Errorf("words 0 and 1 are %#x and %#x: bytes 1 to 3 and 12 to 15 must be 0", words[0], words[1])
	}
	if engine := uint32(words[0] >> 32); engine >= engines {
		return 0, fmt.Errorf("word 0 (engine) is %d, want 0 to %d", engine, engines-1)
	}
	size := 2 + n
	switch op {
	case Stored:
		size = 3 + 2*n
		h.Stored += n
	case Removed:
		h.Removed += n
	case Query:
		h.Queries, h.Queried = h.Queries+1, h.Queried+n
	default:
		return 0, fmt.Errorf("word 0 (operation) is %d, want 1 to 3", op)
	}
	if n == 0 && op != Query {
		return 0, fmt.Errorf("word 1 (items) is 0, want 1 at least")
	}
	if size > uint64(len(words)) {
		return 0, fmt.Errorf("word 1 (items) is %d, which takes %d words of %d that are left", n, size, len(words))
	}
	h.Records++
	return int(size), nil
}

// compare returns an error for the first total of the header h that differs from got, the totals
// of the records.
func (h *Header) compare(got *Header) error {
	for _, f := range []struct {
		name      string
		at        int
		said, got uint64
	}{
		{"records", wordRecords, h.Records, got.Records}, {"stored blocks", wordStored, h.Stored, got.Stored},
		{"removed blocks", wordRemoved, h.Removed, got.Removed}, {"queried blocks", wordQueried, h.Queried, got.Queried},
		{"queries", wordQueries, h.Queries, got.Queries},
	} {
		if f.said != f.got {
			return fmt.Errorf("op log: word %d (%s) is %d, but the log has %d", f.at, f.name, f.said, f.got)
		}
	}
	return nil
}
