package proto

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// fakeAgent is the other end of a client's connection, driven by a test.
type fakeAgent struct {
	t *testing.T
	*Conn
}

// connect runs dial against a fake agent that has answered HELLO.
func connect[C any](t *testing.T, dial func(ctx context.Context, o ClientOptions) (C, error), script func(fakeAgent)) C {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.ListenUnix(Network, &net.UnixAddr{Name: path, Net: Network})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		a := fakeAgent{t, NewConn(c, 0)}
		defer a.Close()
		f := a.want(TypeHello, nil)
		a.send(TypeWelcome, f.Corr, samples()[1].m, nil)
		script(a)
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	c, err := dial(t.Context(), ClientOptions{Socket: path, Hello: *samples()[0].m.(*Hello)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (a fakeAgent) want(t Type, m Message) Header {
	f, err := a.Receive()
	if err != nil || f.Type != t {
		a.t.Errorf("agent received %s, error %v: want %s", f.Type, err, t)
		return f.Header
	}
	if m != nil {
		if err := Decode(f.Type, f.Body, m); err != nil {
			a.t.Error(err)
		}
	}
	return f.Header
}

func (a fakeAgent) send(t Type, corr uint32, m Message, f *os.File) {
	if err := a.Send(t, corr, m, f); err != nil {
		a.t.Error(err)
	}
}

// untilClosed reads until the client closes the connection.
func (a fakeAgent) untilClosed() {
	for {
		if _, err := a.Receive(); err != nil {
			if err != io.EOF {
				a.t.Error(err)
			}
			return
		}
	}
}

func TestLongPromptsAreSplit(t *testing.T) {
	tokens := make([]uint32, 2*MaxTokensPerFrame+5)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	r := RequestID{ID: 9, Generation: 2}
	received := make(chan []uint32, 1)
	c := connect(t, DialScheduler, func(a fakeAgent) {
		var o Open
		a.want(TypeOpen, &o)
		got, _ := ParseTokens(nil, o.Tokens)
		for len(got) < len(tokens) {
			var m Append
			a.want(TypeAppend, &m)
			if int(m.Offset) != len(got) || m.Request != r.ID || m.Generation != r.Generation {
				t.Errorf("APPEND %d/%d at offset %d, want 9/2 at %d", m.Request, m.Generation, m.Offset, len(got))
			}
			got, _ = ParseTokens(got, m.Tokens)
		}
		received <- got
	})
	defer c.Close()
	if err := c.Open(r, "", "", "", tokens); err != nil {
		t.Fatal(err)
	}
	if got := <-received; !slices.Equal(got, tokens) {
		t.Error("the tokens changed on the way")
	}
}

func TestLookupAsksFurtherWhileEverythingIsReady(t *testing.T) {
	c := connect(t, DialScheduler, func(a fakeAgent) {
		for _, ready := range []uint32{MaxBlocksPerFrame, 10} {
			var m Lookup
			h := a.want(TypeLookup, &m)
			a.send(TypeLookupHit, h.Corr, &LookupHit{Request: m.Request, First: m.First, Ready: ready, Coming: 2,
				Sources: slices.Repeat([]byte{byte(kv.TierHost)}, int(ready)),
				Slots:   AppendSlots(nil, slices.Repeat([]Slot{{Extent: m.First}}, int(ready)))}, nil)
		}
		a.untilClosed() // a third LOOKUP would be an error
	})
	defer c.Close()
	got, err := c.Lookup(t.Context(), RequestID{ID: 1}, 0, 3*MaxBlocksPerFrame, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if want := MaxBlocksPerFrame + 10; got.Ready != want || len(got.Sources) != want || len(got.Slots) != want || got.Coming != 4 {
		t.Errorf("ready %d, sources %d, slots %d, coming %d: want %d, %d, %d, 4", got.Ready, len(got.Sources), len(got.Slots), got.Coming, want, want, want)
	}
}

func TestRefusalIsAnErrorThatSaysWhy(t *testing.T) {
	c := connect(t, DialScheduler, func(a fakeAgent) {
		h := a.want(TypeStore, nil)
		a.send(TypeError, h.Corr, &Error{Code: CodeNotFound, Text: "request 1 is not open"}, nil)
	})
	defer c.Close()
	_, err := c.Store(t.Context(), RequestID{ID: 1}, 0, 4)
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Type != TypeStore || refused.Reply.Code != CodeNotFound {
		t.Fatalf("got error %v", err)
	}
	if want := "agent refused STORE: not_found: request 1 is not open"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestResumeNamesTheEarlierSessionAndReturnsWhatIsKept(t *testing.T) {
	earlier := Welcome{Session: 98, AgentNonce: 6}
	held := Held{Granted: []Slot{{Extent: 1, Index: 2, Generation: 3}, {Extent: 1, Index: 3, Generation: 3}}, Pinned: []Slot{{Extent: 4}}}
	c := connect(t, DialScheduler, func(a fakeAgent) {
		var m Resume
		h := a.want(TypeResume, &m)
		if m.Session != earlier.Session || m.AgentNonce != earlier.AgentNonce || len(m.Granted) != 32 || len(m.Pinned) != 16 {
			t.Errorf("got %+v", m)
		}
		a.send(TypeResumed, h.Corr, &Resumed{Granted: m.Granted[16:], Pinned: m.Pinned}, nil)
		a.untilClosed()
	})
	defer c.Close()
	kept, err := c.Resume(t.Context(), earlier, held)
	if d := cmp.Diff(Held{Granted: held.Granted[1:], Pinned: held.Pinned}, kept); err != nil || d != "" {
		t.Errorf("error %v (-want +got):\n%s", err, d)
	}
}

// An agent of an earlier build knows no priority: a STORE without one is the
// frame that it always was.
func TestPriorityTravelsOnlyWhenThereIsOne(t *testing.T) {
	c := connect(t, DialScheduler, func(a fakeAgent) {
		for _, want := range []struct {
			priority uint32
			keys     int
		}{{0, 4}, {7, 5}} {
			f, err := a.Receive()
			var m Store
			if err == nil {
				err = Decode(f.Type, f.Body, &m)
			}
			keys, _, _ := msgp.ReadMapHeaderBytes(f.Body)
			if err != nil || m.Priority != want.priority || int(keys) != want.keys {
				t.Errorf("got %+v in %d keys, error %v: want priority %d in %d", m, keys, err, want.priority, want.keys)
			}
			a.send(TypeGrant, f.Corr, &Grant{Request: m.Request, Present: m.Count}, nil)
		}
		a.untilClosed()
	})
	defer c.Close()
	if _, err := c.Store(t.Context(), RequestID{ID: 1}, 0, 4); err != nil {
		t.Error(err)
	}
	if _, err := c.StorePriority(t.Context(), RequestID{ID: 1}, 0, 4, 7); err != nil {
		t.Error(err)
	}
}

func TestEndOfTheConnectionEndsCallsAndDone(t *testing.T) {
	c := connect(t, DialScheduler, func(a fakeAgent) { a.want(TypeCommit, nil) })
	defer c.Close()
	err := c.Commit(t.Context(), RequestID{ID: 1}, []Slot{{}})
	if !errors.Is(err, ErrDisconnected) {
		t.Errorf("got error %v, want %v", err, ErrDisconnected)
	}
	<-c.Done()
}

func TestGivenUpCallDoesNotDisturbTheNext(t *testing.T) {
	release := make(chan struct{})
	c := connect(t, DialScheduler, func(a fakeAgent) {
		late := a.want(TypeCommit, nil)
		<-release
		a.send(TypeOK, late.Corr, nil, nil)
		h := a.want(TypeCommit, nil)
		a.send(TypeOK, h.Corr, nil, nil)
		a.untilClosed()
	})
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Commit(ctx, RequestID{ID: 1}, []Slot{{}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	close(release)
	if err := c.Commit(t.Context(), RequestID{ID: 1}, []Slot{{}}); err != nil {
		t.Error(err)
	}
}

func TestExtentsAreMappedAndShared(t *testing.T) {
	m := *samples()[3].m.(*ExtentReady)
	f, err := os.CreateTemp(t.TempDir(), "extent")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(m.FileBytes)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, 77), 8*3); err != nil {
		t.Fatal(err)
	}
	w := connect(t, func(ctx context.Context, o ClientOptions) (*WorkerClient, error) {
		o.Hello.Session = 99
		return DialWorker(ctx, o, Register{DeviceBlocks: 1, BlockBytes: 4096})
	}, func(a fakeAgent) {
		a.send(TypeExtentReady, 0, &m, f)
		h := a.want(TypeRegister, nil)
		a.send(TypeOK, h.Corr, nil, nil)
		a.send(TypeLoad, 0, &Load{Job: 5, Slots: AppendSlots(nil, []Slot{{Extent: m.Extent, Index: 3, Generation: 77}}), Blocks: AppendTokens(nil, []uint32{8})}, nil)
	})
	defer w.Close()
	load := <-w.Loads()
	if d := cmp.Diff(LoadJob{Job: 5, Slots: []Slot{{Extent: 1, Index: 3, Generation: 77}}, Blocks: []uint32{8}}, load); d != "" {
		t.Fatalf("load (-want +got):\n%s", d)
	}
	if _, ok := <-w.Loads(); ok {
		t.Error("a second load came")
	}
	checkMapping(t, w, f, m)
}

// checkMapping checks that slot 3 of an extent is the file's memory, also after
// the connection has ended.
func checkMapping(t *testing.T, w *WorkerClient, f *os.File, m ExtentReady) {
	t.Helper()
	s := Slot{Extent: m.Extent, Index: 3}
	if g, err := w.Generation(s); err != nil || g != 77 {
		t.Errorf("generation %d, error %v: want 77", g, err)
	}
	b, err := w.SlotBytes(s)
	if err != nil || len(b) != 4096 {
		t.Fatalf("slot of %d bytes, error %v", len(b), err)
	}
	copy(b, "written by the client")
	got := make([]byte, 7)
	if _, err := f.ReadAt(got, int64(m.DataOffset)+3*4096); err != nil || string(got) != "written" {
		t.Errorf("the file reads %q, error %v", got, err)
	}
	if _, err := w.SlotBytes(Slot{Extent: m.Extent, Index: m.Slots}); err == nil {
		t.Error("a slot behind the end of the extent was found")
	}
	if _, err := w.Generation(Slot{Extent: m.Extent + 1}); err == nil {
		t.Error("a slot of an unknown extent was found")
	}
}

func TestExtentSmallerThanItsClaimIsRefused(t *testing.T) {
	m := *samples()[3].m.(*ExtentReady)
	f, err := os.CreateTemp(t.TempDir(), "extent")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(m.FileBytes) - 1); err != nil {
		t.Fatal(err)
	}
	c := connect(t, DialScheduler, func(a fakeAgent) {
		a.send(TypeExtentReady, 0, &m, f)
		a.untilClosed()
	})
	defer c.Close()
	<-c.Done()
	if err := c.err(); err == nil || !strings.Contains(err.Error(), "file_bytes: 65536, but the file has 65535 bytes") {
		t.Errorf("got error %v", err)
	}
}

// A known frame that was not asked for means that the agent does not keep to the
// protocol; one of a later minor version is skipped.
func TestFramesThatWereNotAskedForEndTheConnectionAndUnknownOnesDoNot(t *testing.T) {
	c := connect(t, DialScheduler, func(a fakeAgent) {
		a.send(Type(999), 0, nil, nil)
		a.send(TypeDrain, 0, &Drain{DeadlineMillis: 7}, nil)
		a.send(TypeDrain, 0, &Drain{DeadlineMillis: 8}, nil)
		a.send(TypeEvicted, 0, &Evicted{Tier: 1, Hashes: make([]byte, 8)}, nil) // WantEvicted was not said
		a.untilClosed()
	})
	defer c.Close()
	<-c.Done()
	if err := c.err(); !errors.Is(err, ErrDisconnected) || !strings.Contains(err.Error(), "EVICTED came and was not asked for") {
		t.Errorf("got error %v", err)
	}
	if d := <-c.Draining(); d.DeadlineMillis != 7 {
		t.Errorf("got %+v, want the first DRAIN, and the unknown frame skipped", d)
	}
}

func TestNoticesOfEvictionComeInOrder(t *testing.T) {
	type notice struct {
		tier   kv.Tier
		hashes []kv.SequenceHash
		lost   uint64
	}
	got := make(chan notice, 2)
	sent := []notice{{kv.TierHost, []kv.SequenceHash{1, 1 << 63}, 0}, {kv.TierDisk, []kv.SequenceHash{3}, 9}}
	dial := func(ctx context.Context, o ClientOptions) (*SchedulerClient, error) {
		o.Evicted = func(tier kv.Tier, hashes []kv.SequenceHash, lost uint64) { got <- notice{tier, hashes, lost} }
		return DialScheduler(ctx, o)
	}
	c := connect(t, dial, func(a fakeAgent) {
		for _, n := range sent {
			a.send(TypeEvicted, 0, &Evicted{Tier: uint8(n.tier), Hashes: AppendHashes(nil, n.hashes), Lost: n.lost}, nil)
		}
		a.untilClosed()
	})
	defer c.Close()
	for _, want := range sent {
		if n := <-got; n.tier != want.tier || n.lost != want.lost || !slices.Equal(n.hashes, want.hashes) {
			t.Errorf("got %+v, want %+v", n, want)
		}
	}
}
