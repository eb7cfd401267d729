package dynamo

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func TestThisMachinesAddressesAreLocal(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1": true, "::1": true, "192.0.2.250": false, "2001:db8::1": false} {
		if isLocal(netip.MustParseAddr(address)) != want {
			t.Errorf("%s: %t", address, !want)
		}
	}
}

func TestDialBackIsToTheRequesterOnly(t *testing.T) {
	for _, tc := range []struct {
		to, from string
		ok       bool
	}{
		{"10.1.2.3:80", "10.1.2.3", true},
		{"10.1.2.3:80", "::ffff:10.1.2.3", true},
		{"[::ffff:10.1.2.3]:80", "10.1.2.3", true},
		{"127.0.0.2:80", "127.0.0.1", true},
		{"[::1]:80", "127.0.0.1", true},
		{"10.0.0.1:80", "127.0.0.1", true},
		{"127.0.0.1:80", "10.0.0.1", true},
		{"127.0.0.1:80", "10.1.2.3", false},
		{"10.0.0.1:80", "10.1.2.3", false},
		{"10.1.2.3:80", "127.0.0.1", false},
		{"10.1.2.4:80", "10.1.2.3", false},
		{"10.1.2.3:0", "10.1.2.3", false},
		{"host:80", "10.1.2.3", false},
		{"", "10.1.2.3", false},
	} {
		local := func(a netip.Addr) bool { return a.IsLoopback() || a == netip.MustParseAddr("10.0.0.1") }
		if err := checkDialBack(tc.to, netip.MustParseAddr(tc.from), local); (err == nil) != tc.ok {
			t.Errorf("%s from %s: %v", tc.to, tc.from, err)
		}
	}
}

// recordedTCP are the segments of a recorded query by what they are.
func recordedTCP(t *testing.T) map[string][]byte {
	t.Helper()
	segments := make(map[string][]byte)
	for _, line := range strings.Split(strings.TrimSpace(readFile(t, filepath.Join(sharedDir(t), "recovery-query.jsonl"))), "\n") {
		var l struct{ What, Hex string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(l.Hex)
		if err != nil {
			t.Fatal(err)
		}
		segments[l.What] = b
	}
	return segments
}

// TestARecordedQueryIsRead also checks that our frames around an answer are those
// that were recorded.
func TestARecordedQueryIsRead(t *testing.T) {
	tcp := recordedTCP(t)
	f, err := readFrame(bufio.NewReader(bytes.NewReader(tcp["request"])))
	if err != nil || f.path != "6c444662bd05619e/dynamo/backend/worker_kv_query_source_c53745f98e7dd" {
		t.Fatalf("%q, %v", f.path, err)
	}
	q, err := decodeRequest(f.payload)
	if err != nil || q.address != "192.0.2.2:32779" || q.query.Worker.ID != 0x6c444662bd05619e || q.query.HasStart {
		t.Errorf("%+v, %v", q, err)
	}
	for what, want := range map[string][]byte{
		"ack":         appendAck(nil, ""),
		"prologue":    appendTwoPart(nil, []byte(`{"error":null}`), nil),
		"final frame": appendTwoPart(nil, nil, kvevent.AppendDynamoFinal(nil)),
		"sentinel":    appendTwoPart(nil, []byte(`"sentinel"`), nil),
		"call-home handshake": appendTwoPart(nil,
			[]byte(`{"subject":"`+q.subject+`","stream_type":"response"}`), nil),
	} {
		if !bytes.Equal(tcp[what], want) {
			t.Errorf("%s: got %x, recorded %x", what, want, tcp[what])
		}
	}
}

// FuzzReadFrame: no bytes make the decoder crash or keep more than a request may
// have, and what it takes is what was sent.
func FuzzReadFrame(f *testing.F) {
	body := kvevent.AppendDynamoQuery(nil, new(everything()))
	f.Add(requestFrame("a/b/c", []byte(`{"payload_codec":"msgpack"}`), body))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		r := bufio.NewReaderSize(in, 16)
		frame, err := readFrame(r)
		if err != nil {
			if !errors.Is(err, errMalformed) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
			return
		}
		if len(frame.path) > maxPath || len(frame.payload) > maxPayload {
			t.Fatalf("%d and %d bytes", len(frame.path), len(frame.payload))
		}
		used := len(b) - in.Len() - r.Buffered()
		headers := int(binary.BigEndian.Uint16(b[2+len(frame.path):]))
		if used != 8+len(frame.path)+headers+len(frame.payload) || !bytes.HasSuffix(b[:used], frame.payload) {
			t.Fatalf("%d bytes used", used)
		}
		if q, err := decodeRequest(frame.payload); err == nil && q.query.Kind == "" {
			t.Fatalf("%+v", q)
		}
	})
}
