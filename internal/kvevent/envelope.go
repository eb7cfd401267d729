package kvevent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// AppendEnvelope appends e as a map of publisher_id, sequence, published_at,
// topic and payload, where payload is the encoded array of events as bytes. An
// empty Topic stands for the constant Topic. Every event must have a Kind; the
// limits of a message are the caller's.
func AppendEnvelope(dst []byte, e *Envelope) []byte {
	topic := e.Topic
	if topic == "" {
		topic = Topic
	}
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
	// The length comes before the bytes and its own size depends on it, so it is
	// put in front of them afterwards.
	mark := len(dst)
	dst = appendRouterEvents(dst, e.Events)
	var head [5]byte
	return slices.Insert(dst, mark, msgp.AppendBytesHeader(head[:0], uint32(len(dst)-mark))...)
}

// EnvelopeDecoder decodes envelopes of Blockyard and of Dynamo since 1.0. The
// zero value is ready. It is for one goroutine.
type EnvelopeDecoder struct {
	// Skipped counts events left out because they speak of an owner kind or a
	// residency domain that is not modelled; Bad counts events left out because
	// they could not be decoded. Both leave a hole in the event ids, by which a
	// consumer notices.
	Skipped, Bad uint64

	strings interner
}

// Decode replaces the contents of e with the envelope in b, which is not
// retained. Its payload is an array of events or, as Dynamo before 1.4 sent it,
// a single one. An envelope of another topic than Topic is an error; e holds no
// events after an error.
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

func (d *EnvelopeDecoder) header(b []byte, e *Envelope) (payload []byte, err error) {
	c := cursor{buf: b}
	var seen fieldSet
	for range c.mapping() {
		key := c.text()
		switch string(key) {
		case "publisher_id":
			e.PublisherID = c.uint64()
			seen.add(0)
		case "sequence":
			e.Sequence = c.uint64()
			seen.add(1)
		case "published_at":
			e.PublishedAt = c.uint64()
		case "topic":
			e.Topic = d.strings.get(c.text())
			seen.add(2)
		case "payload":
			payload = c.bin()
			seen.add(3)
		default:
			c.skip()
		}
		if c.err != nil {
			return nil, fmt.Errorf("%.64q: %w", key, c.err)
		}
	}
	seen.require(&c, "publisher_id", "sequence", "topic", "payload")
	c.end()
	if c.err == nil && e.Topic != Topic {
		return nil, fmt.Errorf("topic %.64q: want %q", e.Topic, Topic)
	}
	return payload, c.err
}

func (d *EnvelopeDecoder) payload(b []byte, e *Envelope) error {
	c := cursor{buf: b}
	n := 1
	if c.peek() != wireMap {
		n = c.array()
	}
	for i := range n {
		if err := d.event(&c, e); err != nil {
			return fmt.Errorf("payload: event %d: %w", i, err)
		}
	}
	c.end()
	return fieldError("payload", c.err)
}

// event reads one event into e.Events or counts why not. The error it returns
// is one after which the next event cannot be found.
func (d *EnvelopeDecoder) event(c *cursor, e *Envelope) error {
	start := c.off
	ev, err := decodeRouterEvent(c, &e.mem)
	switch {
	case err == nil:
		e.Events = append(e.Events, ev)
	case errors.Is(err, errForeign):
		d.Skipped++
	default:
		d.Bad++
		c.off, c.err = start, nil
		c.skip()
		return c.err
	}
	return nil
}

func (e *Envelope) reset() {
	e.mem.reset()
	*e = Envelope{Events: e.Events[:0], mem: e.mem}
}
