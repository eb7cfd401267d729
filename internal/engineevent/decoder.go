package engineevent

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// ErrUnknownTag is wrapped by the entries of Batch.Bad for events of an unknown
// type.
var ErrUnknownTag = errors.New("unknown event type")

// maxBadPrefix is how many bytes of a bad event are kept.
const maxBadPrefix = 48

// BadEvent is an event that could not be decoded. It wraps the reason.
type BadEvent struct {
	// Index is the event's number in its batch. Prefix is a copy of its first
	// bytes, at most 48.
	Index  int
	Prefix []byte
	Reason error
}

// Error names the event and the reason.
func (b *BadEvent) Error() string { return fmt.Sprintf("event %d: %v", b.Index, b.Reason) }

// Unwrap returns the reason.
func (b *BadEvent) Unwrap() error { return b.Reason }

// maxBadEvents is how many events of one batch may be bad before the whole batch
// counts as garbage.
const maxBadEvents = 1024

// Tags of engine events.
const (
	tagStored  = "BlockStored"
	tagRemoved = "BlockRemoved"
	tagCleared = "AllBlocksCleared"
	tagIgnored = "Ignored"
)

// Decoder decodes the payloads of engine streams. The zero value is ready. A
// Decoder is for one goroutine.
type Decoder struct {
	strings interner
	// reader is in use during Decode only. On Decode's stack it would escape, at the
	// cost of an allocation per call.
	reader msgpack.Reader
}

// Decode replaces the contents of b with the batch in payload. payload is not
// retained. Events that cannot be decoded are listed in b.Bad. An error means that
// the batch as a whole is damaged, and b then holds no events.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	b.reset()
	d.reader.Reset(payload)
	err := d.batch(&d.reader, b)
	d.reader.Reset(nil)
	if err != nil {
		b.reset()
		return fmt.Errorf("engine batch: %w", err)
	}
	return nil
}

// batch reads one batch of an engine into b: [ts, events, rank] or the map {ts, events,
// data_parallel_rank}. Further elements and keys are skipped, because engines append new ones.
func (d *Decoder) batch(c *msgpack.Reader, b *Batch) error {
	if c.Peek() == msgpack.Map {
		return d.batchMap(c, b)
	}
	n := c.Array()
	if c.Err == nil && n < 2 {
		c.Fail("%d elements, want at least timestamp and events", n)
	}
	if c.Err != nil {
		return c.Err
	}
	b.Timestamp = readTimestamp(c)
	if err := d.events(c, b); err != nil {
		return err
	}
	if n > 2 {
		b.readRank(c)
	}
	for range n - 3 {
		c.Skip()
	}
	c.End()
	return c.Err
}

// batchMap reads a batch in the form {ts, events, data_parallel_rank} into b, with the keys in any
// order. A batch without events is damaged.
func (d *Decoder) batchMap(c *msgpack.Reader, b *Batch) error {
	hasEvents := false
	for range c.Map() {
		switch key := c.Text(); string(key) {
		case "ts":
			b.Timestamp = readTimestamp(c)
		case "events":
			if hasEvents {
				c.Fail("events appear twice")
				break
			}
			hasEvents = true
			if err := d.events(c, b); err != nil {
				return err
			}
		case "data_parallel_rank":
			b.readRank(c)
		default:
			c.Skip()
		}
		if c.Err != nil {
			return c.Err
		}
	}
	if c.Err == nil && !hasEvents {
		c.Fail("no events key")
	}
	c.End()
	return c.Err
}

// readTimestamp reads seconds, or nil as 0.
func readTimestamp(c *msgpack.Reader) float64 {
	if c.Null() {
		return 0
	}
	return c.Number()
}

func (b *Batch) readRank(c *msgpack.Reader) {
	if c.Null() {
		b.Rank, b.HasRank = 0, false
		return
	}
	b.Rank, b.HasRank = kv.DPRank(c.Uint(math.MaxUint32)), true
}

// events reads the array of events of a batch into b.Events and b.Bad.
func (d *Decoder) events(c *msgpack.Reader, b *Batch) error {
	n := c.Array()
	for i := range n {
		if err := d.event(c, b, i); err != nil {
			return err
		}
	}
	return c.Err
}

// event reads event number i of a batch into b.Events, or into b.Bad when only that event is
// damaged. An error means that the start of the next event is unknown, or that too many are bad.
func (d *Decoder) event(c *msgpack.Reader, b *Batch, i int) error {
	start := c.Offset()
	ev, known, err := d.decodeEvent(c, b)
	if err == nil {
		if known {
			b.Events = append(b.Events, ev)
		}
		return nil
	}
	// The event is whole msgpack if Skip succeeds. Then the next one can be read.
	c.Rewind(start)
	c.Skip()
	if c.Err != nil {
		return fmt.Errorf("event %d: %w", i, c.Err)
	}
	if len(b.Bad) == maxBadEvents {
		return fmt.Errorf("event %d: more than %d bad events: %w", i, maxBadEvents, err)
	}
	event := c.Since(start)
	prefix := bytes.Clone(event[:min(len(event), maxBadPrefix)])
	b.Bad = append(b.Bad, &BadEvent{Index: i, Prefix: prefix, Reason: err})
	return nil
}

// decodeEvent reads one event, whose slices lie in b's memory. known is false for an event of type
// Ignored, which has no meaning for the cache.
func (d *Decoder) decodeEvent(c *msgpack.Reader, b *Batch) (ev Event, known bool, err error) {
	f := eventFields{decoder: d, c: c, mem: &b.mem, ev: Event{Group: NoGroup}}
	if c.Peek() == msgpack.Map {
		err = f.readMap()
	} else {
		err = f.readArray()
	}
	if err != nil {
		return Event{}, false, err
	}
	if f.ignored {
		return Event{}, false, nil
	}
	if err := f.finish(); err != nil {
		return Event{}, false, err
	}
	b.UnknownKeys += f.unknownKeys
	return f.ev, true, nil
}

// batchMemory is the memory behind the slices of a batch's events. All events share
// one array per element type, so that the largest message bounds what a batch
// retains.
type batchMemory struct {
	hashes  []kv.EngineHash
	tokens  []uint32
	objects []uint64
	rows    [][]uint64
}

// reset empties the batch and keeps its memory for the next one.
func (b *Batch) reset() {
	clear(b.Bad) // lets the errors be collected
	m := &b.mem
	*b = Batch{
		Events: b.Events[:0], Bad: b.Bad[:0],
		mem: batchMemory{m.hashes[:0], m.tokens[:0], m.objects[:0], m.rows[:0]},
	}
}

// A stream of events repeats a few strings: media, adapters, salts. The table is
// bounded, because a client may invent any number of salts.
const (
	maxInterned       = 512
	maxInternedLength = 256
)

// interner turns bytes into strings. It allocates only for strings that it has not
// seen lately. The zero value is ready.
type interner struct {
	seen map[string]string
}

// get returns b as a string, without an allocation when the same bytes came lately. Long strings are
// not kept, and a full table is emptied, so that the memory stays bounded.
func (t *interner) get(b []byte) string {
	if s, ok := t.seen[string(b)]; ok || len(b) == 0 {
		return s
	}
	s := string(b)
	if len(b) > maxInternedLength {
		return s
	}
	if t.seen == nil {
		t.seen = make(map[string]string)
	} else if len(t.seen) >= maxInterned {
		clear(t.seen)
	}
	t.seen[s] = s
	return s
}

// name returns a LoRA name or cache salt. A long one is replaced by kv.BoundedName.
func (d *Decoder) name(b []byte) string {
	if len(b) > kv.MaxNameBytes {
		return kv.BoundedName(string(b))
	}
	return d.strings.get(b)
}
