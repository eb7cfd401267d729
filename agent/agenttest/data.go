package agenttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

// BlockSize is the number of tokens in a block of Namespace.
const BlockSize = 16

// Namespace has blocks of 4096 bytes.
func Namespace() kv.Namespace {
	return kv.Namespace{
		Model: "test", Weights: "w", DType: "bfloat16", Layers: 2, OuterDim: 2, BlockSize: BlockSize, InnerDim: 32, DTypeBytes: 2,
		Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "test",
	}
}

// NamespaceNumber is Namespace with other weights for each i.
func NamespaceNumber(i int) kv.Namespace {
	ns := Namespace()
	ns.Weights = fmt.Sprint(i)
	return ns
}

// Hello returns the HELLO of a worker's rank 0 with Namespace.
func Hello(worker uint64) proto.Hello {
	return proto.Hello{Engine: "test", Incarnation: 1, WorkerID: worker, Namespace: Namespace()}
}

// Prompt is n blocks of tokens that are different for each seed.
func Prompt(seed, n int) []uint32 {
	tokens := make([]uint32, n*BlockSize)
	for i := range tokens {
		tokens[i] = uint32(seed*1_000_000 + i)
	}
	return tokens
}

// Content is what StorePrompt stores for block i of the prompt of seed.
func Content(seed, i int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(seed))
	b = binary.LittleEndian.AppendUint64(b, uint64(i))
	return bytes.Repeat(b, 4096/len(b))
}

// StorePrompt stores n blocks of a prompt under request r and closes it.
func StorePrompt(t *testing.T, c *proto.SchedulerClient, r proto.RequestID, seed, n int) {
	t.Helper()
	NoError(t, Store(t.Context(), c, r, seed, n))
}

// Store is StorePrompt for any goroutine: it returns what StorePrompt fails with.
func Store(ctx context.Context, c *proto.SchedulerClient, r proto.RequestID, seed, n int) error {
	if err := c.Open(r, "", "", "", Prompt(seed, n)); err != nil {
		return err
	}
	slots, err := grant(ctx, c, r, 0, n)
	if err != nil {
		return err
	}
	for i, s := range slots {
		if err := fill(c, s, seed, i); err != nil {
			return err
		}
	}
	if err := c.Commit(ctx, r, slots); err != nil {
		return err
	}
	return c.CloseRequest(r)
}

// Open opens request r with n blocks of the prompt of seed.
func Open(t *testing.T, c *proto.SchedulerClient, r proto.RequestID, seed, n int) {
	t.Helper()
	NoError(t, c.Open(r, "", "", "", Prompt(seed, n)))
}

// CloseRequest closes request r.
func CloseRequest(t *testing.T, c *proto.SchedulerClient, r proto.RequestID) {
	t.Helper()
	NoError(t, c.CloseRequest(r))
}

// Grant sends STORE for n blocks of request r from first on. The agent must grant a slot for
// each. Grant returns the slots in the blocks' order.
func Grant(t *testing.T, c *proto.SchedulerClient, r proto.RequestID, first, n int) []proto.Slot {
	t.Helper()
	slots, err := grant(t.Context(), c, r, first, n)
	NoError(t, err)
	return slots
}

// ErrRefused is the error of Store for a block that the agent has no room for at present.
var ErrRefused = errors.New("blocks were refused")

func grant(ctx context.Context, c *proto.SchedulerClient, r proto.RequestID, first, n int) (slots []proto.Slot, err error) {
	got, err := c.Store(ctx, r, first, n)
	if err != nil {
		return nil, err
	}
	if len(got.Grants) != n {
		err := fmt.Errorf("%d of %d blocks were granted (present %d, refused %d)", len(got.Grants), n, got.Present, got.Refused)
		if got.Refused > 0 {
			err = fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return nil, err
	}
	for _, g := range got.Grants {
		slots = append(slots, g.Slot)
	}
	return slots, nil
}

// Pin looks n blocks of request r up, all of which must be ready, and leaves them pinned.
func Pin(t *testing.T, c *proto.SchedulerClient, r proto.RequestID, n int) []proto.Slot {
	t.Helper()
	hit, err := c.Lookup(t.Context(), r, 0, n, 0)
	if err != nil || hit.Ready != n {
		t.Fatalf("got %+v, error %v: want %d blocks", hit, err, n)
	}
	return hit.Slots
}

// Fill writes block i of the prompt of seed into a slot.
func Fill(t *testing.T, c *proto.SchedulerClient, s proto.Slot, seed, i int) {
	t.Helper()
	NoError(t, fill(c, s, seed, i))
}

func fill(c *proto.SchedulerClient, s proto.Slot, seed, i int) error {
	b, err := c.SlotBytes(s)
	copy(b, Content(seed, i))
	return err
}

// NoError ends the test at an error.
func NoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Bye ends the session of a scheduler, or the connection of a worker.
func Bye(t *testing.T, c interface {
	Bye(ctx context.Context, reason string) error
}) {
	t.Helper()
	NoError(t, c.Bye(t.Context(), "test"))
}

// WantReady checks that LOOKUP finds n blocks of the prompt of seed 1.
func WantReady(t *testing.T, c *proto.SchedulerClient, n int) {
	t.Helper()
	r := proto.RequestID{ID: 2}
	NoError(t, c.Open(r, "", "", "", Prompt(1, n)))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	hit, err := c.Lookup(ctx, r, 0, n, 5*time.Second)
	if err != nil || int(hit.Ready) != n {
		t.Errorf("found %+v, %v, want %d blocks", hit, err, n)
	}
	NoError(t, c.CloseRequest(r))
}

// CheckSlot checks that a slot holds block i of the prompt of seed.
func CheckSlot(c interface {
	SlotBytes(proto.Slot) ([]byte, error)
	Generation(proto.Slot) (uint64, error)
}, s proto.Slot, seed, i int) error {
	if g, err := c.Generation(s); err != nil || g != s.Generation {
		return fmt.Errorf("slot %+v: generation word %d, error %v", s, g, err)
	}
	b, err := c.SlotBytes(s)
	if err != nil {
		return err
	}
	if !bytes.Equal(b, Content(seed, i)) {
		return fmt.Errorf("slot %+v does not hold block %d", s, i)
	}
	return nil
}

// Eventually waits until ok is true, 30 seconds at most: a busy machine is no failure.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	waittest.Until(t, what, ok)
}

// WantRefused checks that the agent refused with a code of package proto.
func WantRefused(t *testing.T, err error, code string) {
	t.Helper()
	var r *proto.RefusedError
	if !errors.As(err, &r) || r.Reply.Code != code {
		t.Errorf("got error %v, want it refused with %s", err, code)
	}
}

// FreePort returns a TCP port that nobody uses now.
func FreePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Exists reports whether there is a file.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
