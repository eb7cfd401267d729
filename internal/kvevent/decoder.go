package kvevent

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// ErrUnknownTag is wrapped by the entries of EngineBatch.Bad that stand for
// events of a type that is not known.
var ErrUnknownTag = errors.New("unknown event type")

// maxBadPrefix is how much of a bad event is kept.
const maxBadPrefix = 48

// BadEvent is what an entry of EngineBatch.Bad is: an event that could not be
// decoded. It wraps why.
type BadEvent struct {
	// Index is the event's number in its batch; Prefix are its first bytes, at most
	// 48, its own copy.
	Index  int
	Prefix []byte
	Reason error
}

// Error names the event and the reason.
func (b *BadEvent) Error() string { return fmt.Sprintf("event %d: %v", b.Index, b.Reason) }

// Unwrap is the reason.
func (b *BadEvent) Unwrap() error { return b.Reason }

// maxBadEvents is how many events of one batch may be bad before the whole
// batch counts as garbage.
const maxBadEvents = 1024

// Tags of engine events.
const (
	tagStored  = "BlockStored"
	tagRemoved = "BlockRemoved"
	tagCleared = "AllBlocksCleared"
	tagIgnored = "Ignored"
)

// Decoder decodes the payloads of engine streams: vLLM, SGLang and TensorRT-LLM
// in every encoding they have had. The zero value is ready. A Decoder is for
// one goroutine; it keeps only a bounded table of strings.
type Decoder struct {
	strings interner
	// cursor is at work during Decode only; it lives here because on the stack
	// it would be an allocation per call.
	cursor cursor
}

// Decode replaces the contents of b with the batch in payload, which is not
// retained. Events that cannot be decoded, or whose type is not known, are
// listed in b.Bad, and the rest of the batch stands. An error means that the
// batch as a whole is damaged; b then holds no events.
func (d *Decoder) Decode(payload []byte, b *EngineBatch) error {
	b.reset()
	d.cursor = cursor{buf: payload}
	err := d.batch(&d.cursor, b)
	d.cursor = cursor{}
	if err != nil {
		b.reset()
		return fmt.Errorf("engine batch: %w", err)
	}
	return nil
}

// batch reads [ts, events, rank] or {ts, events, data_parallel_rank}. Elements
// and keys beyond these are skipped: engines append new ones.
func (d *Decoder) batch(c *cursor, b *EngineBatch) error {
	if c.peek() == wireMap {
		return d.batchMap(c, b)
	}
	n := c.array()
	if c.err == nil && n < 2 {
		c.fail("%d elements, want at least timestamp and events", n)
	}
	if c.err != nil {
		return c.err
	}
	b.Timestamp = c.timestamp()
	if err := d.events(c, b); err != nil {
		return err
	}
	if n > 2 {
		b.readRank(c)
	}
	for range n - 3 {
		c.skip()
	}
	c.end()
	return c.err
}

func (d *Decoder) batchMap(c *cursor, b *EngineBatch) error {
	hasEvents := false
	for range c.mapping() {
		switch key := c.text(); string(key) {
		case "ts":
			b.Timestamp = c.timestamp()
		case "events":
			if hasEvents {
				c.fail("events appear twice")
				break
			}
			hasEvents = true
			if err := d.events(c, b); err != nil {
				return err
			}
		case "data_parallel_rank":
			b.readRank(c)
		default:
			c.skip()
		}
		if c.err != nil {
			return c.err
		}
	}
	if c.err == nil && !hasEvents {
		c.fail("no events key")
	}
	c.end()
	return c.err
}

// timestamp reads seconds, or nil as 0.
func (c *cursor) timestamp() float64 {
	if c.null() {
		return 0
	}
	return c.number()
}

func (b *EngineBatch) readRank(c *cursor) {
	if c.null() {
		b.Rank, b.HasRank = 0, false
		return
	}
	b.Rank, b.HasRank = kv.DPRank(c.uint(math.MaxUint32)), true
}

func (d *Decoder) events(c *cursor, b *EngineBatch) error {
	n := c.array()
	for i := range n {
		if err := d.event(c, b, i); err != nil {
			return err
		}
	}
	return c.err
}

// event reads one event into b.Events or b.Bad. The error it returns is one
// after which the next event cannot be found.
func (d *Decoder) event(c *cursor, b *EngineBatch, i int) error {
	start := c.off
	ev, known, err := d.decodeEvent(c, b)
	if err == nil {
		if known {
			b.Events = append(b.Events, ev)
		}
		return nil
	}
	c.off, c.err = start, nil
	c.skip()
	if c.err != nil {
		return fmt.Errorf("event %d: %w", i, c.err)
	}
	if len(b.Bad) == maxBadEvents {
		return fmt.Errorf("event %d: more than %d bad events: %w", i, maxBadEvents, err)
	}
	prefix := bytes.Clone(c.buf[start:min(c.off, start+maxBadPrefix)])
	b.Bad = append(b.Bad, &BadEvent{Index: i, Prefix: prefix, Reason: err})
	return nil
}

// decodeEvent reads one event. known is false for an event that asks to be
// ignored.
func (d *Decoder) decodeEvent(c *cursor, b *EngineBatch) (ev EngineEvent, known bool, err error) {
	f := eventFields{decoder: d, c: c, mem: &b.mem, ev: EngineEvent{Group: NoGroup}}
	if c.peek() == wireMap {
		err = f.readMap()
	} else {
		err = f.readArray()
	}
	if err != nil {
		return EngineEvent{}, false, err
	}
	if f.ignored {
		return EngineEvent{}, false, nil
	}
	if err := f.finish(); err != nil {
		return EngineEvent{}, false, err
	}
	b.UnknownKeys += f.unknownKeys
	return f.ev, true, nil
}

// batchMemory is the memory behind the slices of a batch's events. One array
// per element type serves all events, so what a batch retains is bounded by the
// largest message it has held.
type batchMemory struct {
	hashes  []kv.EngineHash
	tokens  []uint32
	objects []uint64
	rows    [][]uint64
}

func (b *EngineBatch) reset() {
	clear(b.Bad) // errors are garbage to collect
	m := &b.mem
	*b = EngineBatch{
		Events: b.Events[:0], Bad: b.Bad[:0],
		mem: batchMemory{m.hashes[:0], m.tokens[:0], m.objects[:0], m.rows[:0]},
	}
}
