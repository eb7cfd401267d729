package replica

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
	"github.com/blockyard-ai/blockyard/router/load"
)

// Subjects. ROUTER is the instance of a router as 16 hexadecimal digits. The third word is Dynamo's
// name of such a subject.
//
//	blockyard.CLUSTER.replica.active_sequences_events.ROUTER   bookings, their ends, and states
//	blockyard.CLUSTER.replica.prefill_events.ROUTER            progress: first tokens, output blocks
//	blockyard.CLUSTER.replica.echo.ROUTER                      messages of a router to itself
//	blockyard.CLUSTER.replica-ask.ROUTER                       questions to one router, with answers

func bookingsSubject(cluster string, router uint64) string {
	return fmt.Sprintf("blockyard.%s.replica.active_sequences_events.%016x", cluster, router)
}

func progressSubject(cluster string, router uint64) string {
	return fmt.Sprintf("blockyard.%s.replica.prefill_events.%016x", cluster, router)
}

func echoSubject(cluster string, router uint64) string {
	return fmt.Sprintf("blockyard.%s.replica.echo.%016x", cluster, router)
}

// allSubject is a wildcard for the messages of all routers. One subscription keeps their order.
func allSubject(cluster string) string { return "blockyard." + cluster + ".replica.*.*" }

func askSubject(cluster string, router uint64) string {
	return fmt.Sprintf("blockyard.%s.replica-ask.%016x", cluster, router)
}

// Model names the model of a booking.
type Model struct {
	Name      string
	BlockSize uint32
}

// changeKind says what happened to a booking.
type changeKind uint8

const (
	booked changeKind = iota
	progressed
	ended
	numChanges
)

// change is one change of a booking. Booking is complete for booked. progressed has Number and
// Progress, ended has Number.
type change struct {
	kind changeKind
	load.Booking
}

// state describes a router's bookings of a model at a message: their number, and the digest of the
// numbers of the bookings. closing is true in the last message of a model.
type state struct {
	count   int
	digest  uint64
	closing bool
}

// message is what a router tells all others of its bookings of one model. A message with changes takes
// the next number. A message with a state has the number of the last message with changes. opening counts
// how often the router has opened a model: a model that is opened again has numbers from 1 again.
//
// A message with an echo is for the router itself. It has no other field than router.
type message struct {
	router  uint64
	model   Model
	opening uint64
	number  uint64
	changes []change
	state   *state
	echo    uint64
	// bytes is the size of a received message; Receive sets it.
	bytes int
}

const (
	// maxText bounds a request id and a model's name, in bytes.
	maxText = 4096
	// maxSequence bounds the blocks of a booking that travel: 256 KiB. The rest of a longer prompt
	// is not counted at other routers.
	maxSequence = 1 << 15
	// maxChanges and maxMessage bound a message: changes, and bytes without the last change.
	maxChanges = 256
	maxMessage = 256 << 10
	// maxReceivedBytes bounds a message, a question and a page at the receiver. Each of them has at most
	// maxMessage and one booking.
	maxReceivedBytes = 1 << 20
	// maxPage bounds the bookings of a page. Each counts bookingBytes at least for pageBytes.
	maxPage      = pageBytes/bookingBytes + 1
	bookingBytes = 64
	// maxNumber bounds numbers of messages, openings and bookings, so that a next one exists.
	maxNumber = load.MaxNumber
)

func appendMessage(dst []byte, m *message) []byte {
	if m.echo != 0 {
		return appendUint(appendUint(msgp.AppendMapHeader(dst, 2), "router", m.router), "echo", m.echo)
	}
	dst = msgp.AppendMapHeader(dst, 6+movedKeys(m.changes))
	dst = appendUint(dst, "router", m.router)
	dst = appendModel(dst, m.model)
	dst = appendUint(dst, "opening", m.opening)
	dst = appendUint(dst, "number", m.number)
	if m.state != nil {
		dst = msgp.AppendString(dst, "state")
		dst = msgp.AppendArrayHeader(dst, 3)
		dst = msgp.AppendUint64(dst, uint64(m.state.count))
		dst = msgp.AppendUint64(dst, m.state.digest)
		return msgp.AppendBool(dst, m.state.closing)
	}
	return appendMoved(appendChanges(dst, m.changes), m.changes)
}

func appendUint(dst []byte, key string, v uint64) []byte {
	return msgp.AppendUint64(msgp.AppendString(dst, key), v)
}

// appendModel appends two keys: model and block_size.
func appendModel(dst []byte, m Model) []byte {
	dst = msgp.AppendString(msgp.AppendString(dst, "model"), m.Name)
	return appendUint(dst, "block_size", uint64(m.BlockSize))
}

// appendChanges appends the key changes with an array of arrays. The first element of each is its
// kind, the second the number of the booking.
func appendChanges(dst []byte, all []change) []byte {
	dst = msgp.AppendString(dst, "changes")
	dst = msgp.AppendArrayHeader(dst, uint32(len(all)))
	for i := range all {
		c := &all[i]
		switch c.kind {
		case booked:
			dst = msgp.AppendArrayHeader(dst, 13)
			dst = appendHead(dst, c)
			dst = appendProgress(dst, &c.Progress)
			dst = msgp.AppendString(dst, c.ID)
			dst = msgp.AppendUint64(dst, uint64(c.Worker.ID))
			dst = msgp.AppendUint64(dst, uint64(c.Worker.Rank))
			dst = msgp.AppendUint64(dst, uint64(c.PrefillTokens))
			dst = msgp.AppendUint64(dst, uint64(c.PrefillDuration.Microseconds()))
			dst = appendSequence(dst, c.Sequence)
		case progressed:
			dst = msgp.AppendArrayHeader(dst, 7)
			dst = appendHead(dst, c)
			dst = appendProgress(dst, &c.Progress)
		default:
			dst = msgp.AppendArrayHeader(dst, 2)
			dst = appendHead(dst, c)
		}
	}
	return dst
}

func appendHead(dst []byte, c *change) []byte {
	return msgp.AppendUint64(msgp.AppendUint64(dst, uint64(c.kind)), c.Number)
}

func appendProgress(dst []byte, p *load.Progress) []byte {
	dst = msgp.AppendBool(dst, p.PrefillDone)
	dst = msgp.AppendUint64(dst, uint64(p.OutputBlocks))
	dst = msgp.AppendUint64(dst, uint64(p.OutputWeight))
	dst = msgp.AppendUint64(dst, uint64(p.PromptWeight))
	return msgp.AppendUint64(dst, uint64(p.PhantomChanges))
}

// appendSequence appends the hashes as bytes, each as a 64-bit number in little-endian order.
func appendSequence(dst []byte, sequence []kv.SequenceHash) []byte {
	sequence = sequence[:min(len(sequence), maxSequence)]
	dst = msgp.AppendBytesHeader(dst, uint32(8*len(sequence)))
	for _, h := range sequence {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(h))
	}
	return dst
}

// decodeMessage decodes a message. Unknown keys are skipped. The error names the bad key.
func decodeMessage(b []byte) (m message, err error) {
	var seen msgpack.Keys
	var moved []movedTokens
	c := msgpack.NewReader(b)
	for range c.Map() {
		key := c.Text()
		switch string(key) {
		case "router":
			m.router = c.Uint64()
			seen.Add(0)
		case "model":
			m.model.Name = c.BoundedText(maxText)
			seen.Add(1)
		case "block_size":
			m.model.BlockSize = uint32(c.Uint(math.MaxUint32))
			seen.Add(2)
		case "opening":
			m.opening = c.Uint(maxNumber)
			seen.Add(3)
		case "number":
			m.number = c.Uint(maxNumber)
			seen.Add(4)
		case "state":
			m.state = readState(c)
		case "changes":
			m.changes = readChanges(c, maxChanges)
		case "moved":
			moved = readMoved(c, maxChanges)
		case "echo":
			m.echo = c.Uint64()
		default:
			c.Skip()
		}
		if c.Err != nil {
			return message{}, fmt.Errorf("replica message: %.64q: %w", key, c.Err)
		}
	}
	if c.Err == nil && m.echo != 0 {
		return message{router: m.router, echo: m.echo}, nil
	}
	seen.Require(c, "router", "model", "block_size", "opening", "number")
	c.End()
	if c.Err == nil && (m.router == 0 || m.state == nil && (len(m.changes) == 0 || m.number == 0)) {
		c.Fail("router %d, number %d: want a router and either a state or numbered changes", m.router, m.number)
	}
	if c.Err != nil {
		return message{}, fmt.Errorf("replica message: %w", c.Err)
	}
	applyMoved(m.changes, moved)
	return m, nil
}

func readState(c *msgpack.Reader) *state {
	if n := c.Array(); c.Err == nil && n != 3 {
		c.Fail("state of %d elements: want 3", n)
	}
	return &state{count: int(c.Uint(math.MaxInt32)), digest: c.Uint64(), closing: c.Boolean()}
}

// readChanges reads an array of at most limit changes.
func readChanges(c *msgpack.Reader, limit int) (all []change) {
	n := c.Array()
	if c.Err == nil && n > limit {
		c.Fail("%d changes: want at most %d", n, limit)
		return nil
	}
	for range n {
		elements := c.Array()
		ch := change{kind: changeKind(c.Uint(uint64(numChanges) - 1))}
		ch.Number = c.Uint(maxNumber)
		if want := [numChanges]int{13, 7, 2}[ch.kind]; c.Err == nil && elements != want {
			c.Fail("change %d of %d elements: want %d", ch.kind, elements, want)
		}
		if ch.kind != ended {
			ch.Progress = readProgress(c)
		}
		if ch.kind == booked {
			ch.ID = c.BoundedText(maxText)
			ch.Worker = kv.Worker{ID: kv.WorkerID(c.Uint64()), Rank: kv.DPRank(c.Uint(math.MaxUint32))}
			ch.PrefillTokens = int(c.Uint(math.MaxInt32))
			ch.PrefillDuration = time.Duration(c.Uint(maxPrefillMicroseconds)) * time.Microsecond
			ch.Sequence = readSequence(c)
		}
		if c.Err != nil {
			return nil
		}
		all = append(all, ch)
	}
	return all
}

// maxPrefillMicroseconds bounds the expected time of a prefill: a day.
const maxPrefillMicroseconds = 24 * 3600 * 1e6

func readProgress(c *msgpack.Reader) (p load.Progress) {
	const one = 1 << 30 // the weight of a whole block
	p.PrefillDone, p.OutputBlocks = c.Boolean(), int32(c.Uint(math.MaxInt32))
	p.OutputWeight = int64(c.Uint(uint64(p.OutputBlocks) * one))
	p.PromptWeight = int32(c.Uint(one))
	p.PhantomChanges = c.Uint32()
	return p
}

func readSequence(c *msgpack.Reader) []kv.SequenceHash {
	b := c.Bin()
	if len(b)%8 != 0 || len(b) > 8*maxSequence {
		c.Fail("%d bytes of hashes: want a multiple of 8, at most %d", len(b), 8*maxSequence)
	}
	if len(b) == 0 || c.Err != nil {
		return nil
	}
	sequence := make([]kv.SequenceHash, len(b)/8)
	for i := range sequence {
		sequence[i] = kv.SequenceHash(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return sequence
}
