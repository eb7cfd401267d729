package kvevent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// AppendEnvelope appends e as a map of publisher_id, sequence, published_at, topic
// and payload. payload is the encoded array of events as bytes. An empty Topic
// means the constant Topic. Every event must have a Kind. The caller keeps to the
// limits of a message.
func AppendEnvelope(dst []byte, e *Envelope) []byte {
	topic := cmp.Or(e.Topic, Topic)
	dst = msgp.AppendMapHeader(dst, 5)
	dst = msgp.AppendString(dst, "publisher_id")
	dst = msgp.AppendUint64(dst, e.PublisherID)
	dst = msgp.AppendString(dst, "sequence")
	dst = msgp.AppendUint64(dst, e.Sequence)
	dst = msgp.AppendString(dst, "published_at")
	dst = msgp.AppendUint64(dst, e.PublishedAt)
	dst = msgp.AppendString(dst, "topic")
	dst = msgp.AppendString(dst, topic)
	dst = msgp.AppendString(dst, "payload")
	// The length precedes the bytes and its size depends on the length, so the
	// length is inserted afterwards.
	mark := len(dst)
	dst = appendRouterEvents(dst, e.Events)
	var head [5]byte
	return slices.Insert(dst, mark, msgp.AppendBytesHeader(head[:0], uint32(len(dst)-mark))...)
}

// EnvelopeDecoder decodes envelopes of Blockyard and of Dynamo since 1.0. The zero
// value is ready. A decoder is for one goroutine.
type EnvelopeDecoder struct {
	// Skipped counts skipped events of an owner kind or residency domain that is
	// not modelled. Bad counts events that could not be decoded. Both leave a hole
	// in the event ids, by which a consumer notices the loss.
	Skipped, Bad uint64
}

// Decode replaces the contents of e with the envelope in b. b is not retained. The
// payload is an array of events or, as Dynamo before 1.4 sent it, a single event.
// Another topic than Topic is an error. After an error e holds no events.
func (d *EnvelopeDecoder) Decode(b []byte, e *Envelope) error {
	e.reset()
	payload, err := d.header(b, e)
	if err == nil {
		err = d.payload(payload, e)
	}
	if err != nil {
		e.reset()
		return fmt.Errorf("envelope: %w", err)
	}
	return nil
}

// header reads an envelope into e, except its events, and returns the encoded events. A key that is
// missing, or another topic than Topic, is an error.
func (d *EnvelopeDecoder) header(b []byte, e *Envelope) (payload []byte, err error) {
	c := msgpack.NewReader(b)
	var topic []byte
	var seen msgpack.Keys
	for range c.Map() {
		key := c.Text()
		switch string(key) {
		case "publisher_id":
			e.PublisherID = c.Uint64()
			seen.Add(0)
		case "sequence":
			e.Sequence = c.Uint64()
			seen.Add(1)
		case "published_at":
			e.PublishedAt = c.Uint64()
		case "topic":
			topic = c.Text()
			seen.Add(2)
		case "payload":
			payload = c.Bin()
			seen.Add(3)
		default:
			c.Skip()
		}
		if c.Err != nil {
			return nil, fmt.Errorf("%.64q: %w", key, c.Err)
		}
	}
	seen.Require(c, "publisher_id", "sequence", "topic", "payload")
	c.End()
	if c.Err == nil && string(topic) != Topic {
		return nil, fmt.Errorf("topic %.64q: want %q", topic, Topic)
	}
	e.Topic = Topic
	return payload, c.Err
}

// payload reads the encoded events of an envelope into e.Events: an array, or a single map.
func (d *EnvelopeDecoder) payload(b []byte, e *Envelope) error {
	c := msgpack.NewReader(b)
	n := 1
	if c.Peek() != msgpack.Map {
		n = c.Array()
	}
	for i := range n {
		if err := d.event(c, e); err != nil {
			return fmt.Errorf("payload: event %d: %w", i, err)
		}
	}
	c.End()
	if c.Err != nil {
		return fmt.Errorf("payload: %w", c.Err)
	}
	return nil
}

// event reads one event into e.Events. It counts an event that this version does not model in
// d.Skipped, and a damaged one in d.Bad. An error means that the start of the next event is unknown.
func (d *EnvelopeDecoder) event(c *msgpack.Reader, e *Envelope) error {
	start := c.Offset()
	ev, err := decodeRouterEvent(c, &e.mem)
	switch {
	case err == nil:
		e.Events = append(e.Events, ev)
	case errors.Is(err, errForeign):
		d.Skipped++
	default:
		d.Bad++
		c.Rewind(start)
		c.Skip()
		return c.Err
	}
	return nil
}

func (e *Envelope) reset() {
	e.mem.reset()
	*e = Envelope{Events: e.Events[:0], mem: e.mem}
}
