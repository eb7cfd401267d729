package source

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Answer is a publisher's answer to a query, or its chunks FirstChunk to NextChunk-1; see
// kvevent.QueryReply.
type Answer struct {
	Kind        kvevent.QueryKind
	LastEventID uint64
	Message     string
	Events      []kvevent.RouterEvent
	// DumpID identifies a dump whose other chunks can be queried; 0 for other answers.
	DumpID                uint64
	FirstChunk, NextChunk uint32
}

// Extend appends next, the rest of an interrupted dump, to a. If next does not continue a, because
// the publisher has sent a whole new answer, next replaces a.
func (a *Answer) Extend(next *Answer) {
	if a.DumpID == 0 || next.DumpID != a.DumpID || next.FirstChunk != a.NextChunk {
		*a = *next
		return
	}
	a.Events = append(a.Events, next.Events...)
	a.NextChunk = next.NextChunk
}

// MaxAnswerBlocks bounds the memory of one answer; see Answer.Size.
const MaxAnswerBlocks = 1 << 26

// Size returns the number of events plus the number of their blocks.
func (a *Answer) Size() int { return answerSize(a.Events) }

func answerSize(events []kvevent.RouterEvent) int {
	size := len(events)
	for i := range events {
		size += events[i].NumBlocks()
	}
	return size
}

// Assembly collects the chunks of one answer.
type Assembly struct {
	publisher uint64
	// resume is the dump that the query continues from chunk first; 0 for a new query.
	resume uint64
	first  uint32

	answer Answer
	chunks uint32
	size   int
}

// NewAssembly returns an Assembly of a publisher's answer to q.
func NewAssembly(publisher uint64, q *kvevent.QueryRequest) *Assembly {
	return &Assembly{publisher: publisher, resume: q.DumpID, first: q.FirstChunk}
}

// Answer returns the chunks so far.
func (a *Assembly) Answer() *Answer { return &a.answer }

// Add appends the next chunk of an answer, a message of the publisher, and reports whether it was
// the last one. A chunk out of order, or of another answer, is an error. a.resume is the dump
// that the query asked to continue at chunk a.first; 0: none.
func (a *Assembly) Add(r *kvevent.QueryReply) (done bool, err error) {
	if a.chunks == 0 {
		a.answer = Answer{Kind: r.Kind, DumpID: r.DumpID}
		// The publisher may continue the dump, or begin another answer with chunk 0.
		if a.resume != 0 && r.DumpID == a.resume {
			a.answer.FirstChunk, a.answer.NextChunk = a.first, a.first
		}
	}
	switch {
	case r.PublisherID != a.publisher:
		return false, fmt.Errorf("answer chunk %d: publisher %016x, want %016x", r.Chunk, r.PublisherID, a.publisher)
	case r.DumpID != a.answer.DumpID:
		return false, fmt.Errorf("answer chunk %d: dump %d, want dump %d", r.Chunk, r.DumpID, a.answer.DumpID)
	case r.Chunk != a.answer.NextChunk:
		return false, fmt.Errorf("answer chunk %d: want chunk %d", r.Chunk, a.answer.NextChunk)
	case r.Kind != a.answer.Kind:
		return false, fmt.Errorf("answer chunk %d: kind %q after %q", r.Chunk, r.Kind, a.answer.Kind)
	}
	if a.size += answerSize(r.Events); a.size > MaxAnswerBlocks {
		return false, fmt.Errorf("answer chunk %d: more than %d blocks and events", r.Chunk, MaxAnswerBlocks)
	}
	a.chunks++
	a.answer.NextChunk++
	a.answer.LastEventID, a.answer.Message = r.LastEventID, r.Message
	a.answer.Events = append(a.answer.Events, r.Events...)
	return r.Final, nil
}

// Partial returns the chunks of an interrupted answer if the rest can be queried, else
// nil.
func (a *Assembly) Partial() *Answer {
	if a.chunks == 0 || a.answer.DumpID == 0 {
		return nil
	}
	return &a.answer
}
