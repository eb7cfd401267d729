package replica

import (
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/load"
)

var goldenBooking = load.Booking{Number: 3, Request: load.Request{ID: "r1", Worker: kv.Worker{ID: 7, Rank: 1}, PrefillTokens: 900,
	PrefillDuration: 1500 * time.Microsecond, Sequence: []kv.SequenceHash{0x1122334455667788}}, Progress: load.Progress{PromptWeight: 1 << 30}}

// golden are messages with their bytes. docs/replica-sync.md has the same bytes.
var golden = map[string]message{
	"86a6726f757465720ba56d6f64656ca16daa626c6f636b5f73697a6510a76f70656e696e6702a66e756d62657205a76368616e676573929d0003c20000ce4000000000a272310701cd0384cd05dcc4088877665544332211920202": {
		router: 11, model: model, opening: 2, number: 5, changes: []change{{booked, goldenBooking}, {kind: ended, Booking: load.Booking{Number: 2}}}},
	"86a6726f757465720ba56d6f64656ca16daa626c6f636b5f73697a6510a76f70656e696e6702a66e756d62657206a76368616e67657391970103c302ce80000000ce4000000001": {
		router: 11, model: model, opening: 2, number: 6, changes: []change{{progressed, load.Booking{Number: 3, Progress: load.Progress{PrefillDone: true, OutputBlocks: 2, OutputWeight: 2 << 30, PromptWeight: 1 << 30, PhantomChanges: 1}}}}},
	"86a6726f757465720ba56d6f64656ca16daa626c6f636b5f73697a6510a76f70656e696e6702a66e756d62657206a573746174659301cffedcba9876543210c2": {
		router: 11, model: model, opening: 2, number: 6, state: &state{1, 0xfedcba9876543210, false}},
	"87a6726f757465720ba56d6f64656ca16daa626c6f636b5f73697a6510a76f70656e696e6702a66e756d62657207a76368616e67657391970103c20000ce4000000000a56d6f766564920320": {
		router: 11, model: model, opening: 2, number: 7, changes: []change{{progressed, load.Booking{Number: 3, Progress: load.Progress{PromptWeight: 1 << 30, MovedTokens: 32}}}}},
	"82a6726f757465720ba46563686f07": {router: 11, echo: 7},
}

var compare = gocmp.AllowUnexported(message{}, change{}, state{}, page{}, query{})

func TestMessagesHaveTheirBytes(t *testing.T) {
	for want, m := range golden {
		got := hex.EncodeToString(appendMessage(nil, &m))
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		b, err := hex.DecodeString(want)
		if err != nil {
			t.Fatal(err)
		}
		read, err := decodeMessage(b)
		if diff := gocmp.Diff(m, read, compare); err != nil || diff != "" {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
	}
}

func TestQuestionsAndPagesAreReadAsWritten(t *testing.T) {
	half := 0.5
	for _, q := range []query{{model: model, from: 9}, {mark: &Mark{Kind: MarkFree, Model: "m", ID: "r1"}}, {mark: &Mark{Kind: MarkOutput, ID: "r1", Decay: &half}}} {
		got, err := decodeQuery(appendQuery(nil, &q))
		if diff := gocmp.Diff(q, got, compare); err != nil || diff != "" {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
	}
	moved := goldenBooking
	moved.Number, moved.MovedTokens = 4, 48
	p := page{opening: 1, number: 8, next: 4, bookings: []change{{booked, goldenBooking}, {booked, moved}}}
	got, err := decodePage(appendPage(nil, &p))
	if diff := gocmp.Diff(p, got, compare); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// TestLongPromptsTravelInPart: a message stays below what a NATS server takes.
func TestLongPromptsTravelInPart(t *testing.T) {
	j := newJournal(make(chan struct{}, 1))
	long := goldenBooking
	long.Sequence = make([]kv.SequenceHash, 1<<17)
	for range 3 {
		j.Booked(&long)
	}
	for more := true; more; {
		var m message
		m, _, more = j.take()
		if n := len(appendMessage(nil, &m)); n > 1<<20 || n < 8*maxSequence {
			t.Errorf("a message of %d bytes", n)
		}
	}
}

func TestBadMessagesAreRefused(t *testing.T) {
	for want, m := range map[string]message{
		"want a router": {model: model, number: 1, changes: []change{{kind: ended}}},
		"number 0":      {router: 1, model: model, changes: []change{{kind: ended}}},
		"257 changes":   {router: 1, model: model, number: 1, changes: make([]change, 257)},
		"bytes":         {router: 1, model: Model{Name: strings.Repeat("x", maxText+1)}, number: 1, changes: []change{{kind: ended}}},
	} {
		if _, err := decodeMessage(appendMessage(nil, &m)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// Bytes cut off or changed anywhere end in an error or in a message, never in a panic.
	rng := rand.New(rand.NewPCG(1, 2))
	for text := range golden {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		for range 2000 {
			bad := append([]byte{}, b[:rng.IntN(len(b)+1)]...)
			if len(bad) > 0 {
				bad[rng.IntN(len(bad))] = byte(rng.Uint32())
			}
			_, _ = decodeMessage(bad)
			_, _ = decodeQuery(bad)
			_, _ = decodePage(bad)
		}
	}
}

func FuzzMessages(f *testing.F) {
	for text := range golden {
		b, err := hex.DecodeString(text)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeMessage(b); err == nil {
			again, err := decodeMessage(appendMessage(nil, &m))
			if diff := gocmp.Diff(m, again, compare); err != nil || diff != "" {
				t.Errorf("%v (-want +got)\n%s", err, diff)
			}
		}
	})
}
