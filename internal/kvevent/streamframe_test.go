package kvevent

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func streamFrame(kind StreamKind, body []byte) []byte {
	b := append(BeginStreamFrame([]byte("before"), kind), body...)
	return EndStreamFrame(b, len("before"))[len("before"):]
}

// TestStreamFramesComeBackWhole: in order, whatever the pieces that they arrive in,
// and the end between two frames is io.EOF.
func TestStreamFramesComeBackWhole(t *testing.T) {
	large := bytes.Repeat([]byte("large"), 1<<19)
	var stream []byte
	for kind, body := range [][]byte{1: {}, 2: []byte("x"), 3: large} {
		if body != nil {
			stream = append(stream, streamFrame(StreamKind(kind), body)...)
		}
	}
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(stream), "halves": iotest.HalfReader(bytes.NewReader(stream))} {
		var buf []byte
		for want := StreamKind(1); want <= 3; want++ {
			kind, body, err := ReadStreamFrame(r, buf)
			if err != nil || kind != want || want == 3 && !bytes.Equal(body, large) {
				t.Fatalf("%s: kind %d of %d bytes, %v; want kind %d", name, kind, len(body), err, want)
			}
			buf = body
		}
		if _, _, err := ReadStreamFrame(r, buf); err != io.EOF {
			t.Errorf("%s: the end is %v", name, err)
		}
	}
}

func TestDamagedStreamFrameIsAnError(t *testing.T) {
	whole := streamFrame(StreamEvents, []byte("body"))
	for n := 1; n < len(whole); n++ {
		if _, _, err := ReadStreamFrame(bytes.NewReader(whole[:n]), nil); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes of %d: %v", n, len(whole), err)
		}
	}
	huge := []byte{0xff, 0xff, 0xff, 0x7f, 2}
	if _, _, err := ReadStreamFrame(bytes.NewReader(huge), nil); !errors.Is(err, ErrStreamFrame) {
		t.Errorf("a length beyond the bound: %v", err)
	}
	// A length within the bound that nothing follows costs no memory of that size.
	allocs := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := ReadStreamFrame(bytes.NewReader([]byte{0, 0, 0, 1, 2}), nil); err == nil {
				b.Fatal("no error")
			}
		}
	})
	if got := allocs.AllocedBytesPerOp(); got > 4<<20 {
		t.Errorf("%d bytes allocated for a body that never came", got)
	}
}

// FuzzReadStreamFrame: whatever comes, a frame that is read is what was written, and
// nothing is read beyond it.
func FuzzReadStreamFrame(f *testing.F) {
	f.Add(streamFrame(StreamEvents, []byte("body")))
	f.Add([]byte{0xff, 0xff, 0xff, 0, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		kind, body, err := ReadStreamFrame(r, nil)
		if err != nil {
			return
		}
		again := streamFrame(kind, body)
		if read := len(b) - r.Len(); read != len(again) || !bytes.Equal(again, b[:read]) {
			t.Fatalf("% x was read as kind %d, % x", b, kind, body)
		}
	})
}
