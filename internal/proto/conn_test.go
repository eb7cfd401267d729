package proto

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// socketPair returns the two ends of a connection over a real socket.
func socketPair(t *testing.T, sendTimeout time.Duration) (a, b *Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix(Network, &net.UnixAddr{Name: path, Net: Network})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.DialUnix(Network, nil, &net.UnixAddr{Name: path, Net: Network})
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	a, b = NewConn(dialed, sendTimeout), NewConn(accepted, sendTimeout)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// openFiles is the number of file descriptors of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestConnCarriesFramesAndOneFile(t *testing.T) {
	a, b := socketPair(t, 0)
	f, err := os.CreateTemp(t.TempDir(), "extent")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("bytes"); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(TypeBye, 3, &Bye{Reason: "r"}, f); err != nil {
		t.Fatal(err)
	}
	got, err := b.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if got.Type != TypeBye || got.Corr != 3 || got.File == nil {
		t.Fatalf("got %+v", got.Header)
	}
	defer got.File.Close()
	text := make([]byte, 5)
	if _, err := got.File.ReadAt(text, 0); err != nil || string(text) != "bytes" {
		t.Errorf("received file reads %q, error %v", text, err)
	}
}

func TestPeerIsWhoConnected(t *testing.T) {
	_, b := socketPair(t, 0)
	p, err := b.Peer()
	if err != nil {
		t.Fatal(err)
	}
	if int(p.PID) != os.Getpid() || int(p.UID) != os.Getuid() || int(p.GID) != os.Getgid() {
		t.Errorf("got %+v", p)
	}
}

func TestReceiveReportsTheEndAsEOF(t *testing.T) {
	a, b := socketPair(t, 0)
	a.Close()
	if _, err := b.Receive(); err != io.EOF {
		t.Errorf("got error %v, want io.EOF", err)
	}
}

func TestMessagesThatAreNoFramesAreMalformed(t *testing.T) {
	good, err := AppendFrame(nil, TypeBye, 1, &Bye{})
	if err != nil {
		t.Fatal(err)
	}
	wrongMagic := append([]byte("KVB1"), good[4:]...)
	withFlag := slices.Clone(good)
	withFlag[7] = 0x80
	for name, message := range map[string][]byte{
		"a flag":        withFlag,
		"half a header": good[:8],
		"half a body":   good[:len(good)-2],
		"wrong magic":   wrongMagic,
		"too large":     make([]byte, MaxFrame+1000),
	} {
		a, b := socketPair(t, 0)
		if _, err := a.Socket().Write(message); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Receive(); !IsMalformed(err) {
			t.Errorf("%s: got error %v, want one that is malformed", name, err)
		}
	}
}

func TestStrayDescriptorsAreClosed(t *testing.T) {
	good, err := AppendFrame(nil, TypeBye, 1, &Bye{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{2, maxFilesPerFrame, maxFilesPerFrame + 5} {
		a, b := socketPair(t, 0)
		fds := make([]int, n)
		for i := range fds {
			fds[i] = int(os.Stdin.Fd())
		}
		before := openFiles(t)
		if _, _, err := a.Socket().WriteMsgUnix(good, unix.UnixRights(fds...), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Receive(); !IsMalformed(err) {
			t.Errorf("%d descriptors: got error %v, want one that is malformed", n, err)
		}
		if after := openFiles(t); after != before {
			t.Errorf("%d descriptors: %d are open after the frame was refused, %d before", n, after, before)
		}
	}
}

func TestPeerThatDoesNotReadLosesItsConnection(t *testing.T) {
	a, b := socketPair(t, 50*time.Millisecond)
	m := &Open{Request: 1, Tokens: make([]byte, 4*MaxTokensPerFrame)}
	var err error
	for range 1000 { // far more than any socket buffer holds
		if err = a.Send(TypeOpen, 0, m, nil); err != nil {
			break
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got error %v, want a deadline", err)
	}
	if err := a.Send(TypeClose, 0, &Close{}, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("send after the deadline: got error %v, want a closed connection", err)
	}
	for {
		if _, err := b.Receive(); err != nil {
			if err != io.EOF {
				t.Errorf("the peer sees %v, want io.EOF", err)
			}
			return
		}
	}
}

func TestDialNamesTheSocket(t *testing.T) {
	_, err := Dial(context.Background(), filepath.Join(t.TempDir(), "absent"))
	if err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("got error %v", err)
	}
}
