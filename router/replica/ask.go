package replica

import (
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// MarkKind says what a client reports of a booked request.
type MarkKind uint8

// Kinds of marks.
const (
	MarkPrefill MarkKind = iota
	MarkOutput
	MarkFree
	numMarks
)

// Mark is a client's report of a booked request, on its way to the router that booked it.
type Mark struct {
	Kind MarkKind
	// Model may be empty, as in Router.Free.
	Model, ID string
	// Decay is that of MarkOutput; nil means none.
	Decay *float64
}

// query asks a router for its bookings of a model, from a number on, or passes it a mark.
type query struct {
	model Model
	from  uint64
	mark  *Mark
}

// page answers a query for bookings: those with numbers of from and more, up to a size. next is the
// number from which the next page goes on; 0 says that none follows. The page has every change of the
// messages up to number.
//
// opening is that of the model at the router that answers.
type page struct {
	opening, number, next uint64
	bookings              []change
}

func appendQuery(dst []byte, q *query) []byte {
	if q.mark != nil {
		dst = msgp.AppendMapHeader(dst, 1)
		return appendMark(dst, q.mark)
	}
	dst = msgp.AppendMapHeader(dst, 3)
	dst = appendModel(dst, q.model)
	return appendUint(dst, "from", q.from)
}

// appendMark appends the key mark with an array: kind, model, id, and the decay or nil.
func appendMark(dst []byte, m *Mark) []byte {
	dst = msgp.AppendArrayHeader(msgp.AppendString(dst, "mark"), 4)
	dst = msgp.AppendUint64(dst, uint64(m.Kind))
	dst = msgp.AppendString(msgp.AppendString(dst, m.Model), m.ID)
	if m.Decay == nil {
		return msgp.AppendNil(dst)
	}
	return msgp.AppendFloat64(dst, *m.Decay)
}

// decodeQuery decodes a query. Unknown keys are skipped. The error names the bad key.
func decodeQuery(b []byte) (q query, err error) {
	c := msgpack.NewReader(b)
	for range c.Map() {
		key := c.Text()
		switch string(key) {
		case "model":
			q.model.Name = c.BoundedText(maxText)
		case "block_size":
			q.model.BlockSize = uint32(c.Uint(math.MaxUint32))
		case "from":
			q.from = c.Uint(maxNumber)
		case "mark":
			q.mark = readMark(c)
		default:
			c.Skip()
		}
		if c.Err != nil {
			return query{}, fmt.Errorf("replica query: %.64q: %w", key, c.Err)
		}
	}
	c.End()
	if c.Err != nil {
		return query{}, fmt.Errorf("replica query: %w", c.Err)
	}
	return q, nil
}

func readMark(c *msgpack.Reader) *Mark {
	if n := c.Array(); c.Err == nil && n != 4 {
		c.Fail("mark of %d elements: want 4", n)
	}
	m := &Mark{Kind: MarkKind(c.Uint(uint64(numMarks) - 1)), Model: c.BoundedText(maxText), ID: c.BoundedText(maxText)}
	if !c.Null() {
		m.Decay = new(c.Number())
	}
	return m
}

func appendPage(dst []byte, p *page) []byte {
	dst = msgp.AppendMapHeader(dst, 4+movedKeys(p.bookings))
	dst = appendUint(dst, "opening", p.opening)
	dst = appendUint(dst, "number", p.number)
	dst = appendUint(dst, "next", p.next)
	return appendMoved(appendChanges(dst, p.bookings), p.bookings)
}

// decodePage decodes a page. Unknown keys are skipped. The error names the bad key.
func decodePage(b []byte) (p page, err error) {
	var seen msgpack.Keys
	var moved []movedTokens
	c := msgpack.NewReader(b)
	for range c.Map() {
		key := c.Text()
		switch string(key) {
		case "opening":
			p.opening = c.Uint(maxNumber)
			seen.Add(0)
		case "number":
			p.number = c.Uint(maxNumber)
			seen.Add(1)
		case "next":
			p.next = c.Uint(maxNumber)
			seen.Add(2)
		case "changes":
			p.bookings = readChanges(c, maxPage)
			seen.Add(3)
		case "moved":
			moved = readMoved(c, maxPage)
		default:
			c.Skip()
		}
		if c.Err != nil {
			return page{}, fmt.Errorf("replica page: %.64q: %w", key, c.Err)
		}
	}
	seen.Require(c, "opening", "number", "next", "changes")
	c.End()
	for i := range p.bookings {
		if p.bookings[i].kind != booked {
			c.Fail("change %d: want a booking", p.bookings[i].kind)
		}
	}
	if c.Err != nil {
		return page{}, fmt.Errorf("replica page: %w", c.Err)
	}
	applyMoved(p.bookings, moved)
	return p, nil
}
