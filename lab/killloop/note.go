package killloop

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// kind is the kind of a note.
type kind string

// Messages of engines and checkers to the harness.
const (
	// noteGrant: the engine may write the slots, for blocks of the document. It comes
	// before the first byte.
	noteGrant kind = "grant"
	// noteSettle: the engine has written the last byte into the slots.
	noteSettle kind = "settle"
	// noteBegin and noteEnd are about the copy into one slot.
	noteBegin kind = "begin"
	noteEnd   kind = "end"
	// noteLoaded: Count blocks were loaded and compared.
	noteLoaded kind = "loaded"
	// noteResumed: RESUMED kept Count granted and Other pinned slots. It did not keep
	// the grants in Slots, most of them committed already.
	noteResumed kind = "resumed"
	// noteFound and noteLost are a checker's, about Blocks of the document.
	noteFound kind = "found"
	noteLost  kind = "lost"
	// noteFault: a fault happened, Count times.
	noteFault kind = "fault"
)

// fault is the name of something that must not happen.
type fault string

const (
	faultForeign fault = "foreign_writes" // bytes in a granted slot that its writer did not write
	faultWrong   fault = "wrong_bytes"    // loaded bytes that are not the block's
	faultDropped fault = "dropped_slots"  // slots that RESUME named and RESUMED did not keep
	faultPin     fault = "broken_pins"    // pinned slots that changed their generation
	faultRefused fault = "refusals"       // frames that the agent refused
	faultDouble  fault = "double_grants"  // slots granted while they were held; found by the ledger
	faultSealed  fault = "sealed_lost"    // sealed blocks that LOOKUP does not find; found by the ledger
	faultLeak    fault = "leaks"          // slots held after all engines have ended; found at the end
)

// faults returns all faults in the order of the report.
func faults() []fault {
	return []fault{faultSealed, faultWrong, faultForeign, faultDouble, faultDropped, faultPin, faultRefused, faultLeak}
}

// note is one line from a child.
type note struct {
	Kind kind `json:"k"`
	// Time is of the kernel's monotonic clock, in nanoseconds, see cluster.Now.
	Time   int64        `json:"t"`
	Space  int          `json:"ns,omitempty"`
	Doc    docID        `json:"doc,omitempty"`
	Blocks []uint32     `json:"blocks,omitempty"` // of Doc; with Slots, one for each
	Slots  []proto.Slot `json:"slots,omitempty"`
	Count  uint64       `json:"n,omitempty"`
	Other  uint64       `json:"m,omitempty"`
	Fault  fault        `json:"fault,omitempty"`
	Text   string       `json:"text,omitempty"`
}

// noteWriter writes a child's notes. A note is in the pipe when put returns, so
// that a kill does not lose it.
type noteWriter struct {
	space int

	mu  sync.Mutex
	out *json.Encoder
	err error
}

func newNoteWriter(w io.Writer, space int) *noteWriter {
	return &noteWriter{space: space, out: json.NewEncoder(w)}
}

// put writes a note for the harness as one JSON line. It sets the space, and the time unless the
// note has one.
func (w *noteWriter) put(n note) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.Time == 0 {
		n.Time = cluster.Now()
	}
	n.Space = w.space
	if err := w.out.Encode(n); w.err == nil {
		w.err = err
	}
}

// fault notes a fault unless count is 0.
func (w *noteWriter) fault(f fault, count int, format string, args ...any) {
	if count > 0 {
		w.put(note{Kind: noteFault, Fault: f, Count: uint64(count), Text: fmt.Sprintf(format, args...)})
	}
}

// failed returns the first error of writing, which means that the scenario is gone.
func (w *noteWriter) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
