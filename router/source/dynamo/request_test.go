package dynamo

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// recoveryServer is a recovery target as a worker of Dynamo serves it.
type recoveryServer struct {
	t        *testing.T
	listener net.Listener
	answer   func(*kvevent.DynamoQuery) *kvevent.QueryReply
	refusal  string // of the acknowledgement
	prologue string // when not empty, instead of one without an error
	stranger bool   // somebody else calls the return address first
	serving  sync.WaitGroup
}

func newRecoveryServer(t *testing.T, answer func(*kvevent.DynamoQuery) *kvevent.QueryReply) *recoveryServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &recoveryServer{t: t, listener: l, answer: answer}
	s.serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.serving.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.serving.Wait()
	})
	return s
}

func (s *recoveryServer) target() target {
	return target{s.listener.Addr().String(), "ab/dynamo/backend/x"}
}

// serve reads one request and answers it; an error is the asker's going away.
func (s *recoveryServer) serve(conn net.Conn) {
	defer conn.Close()
	var size [4]byte
	var path, payload []byte
	for i, part := range []*[]byte{&path, nil, &payload} {
		width := []int{2, 2, 4}[i]
		if _, err := io.ReadFull(conn, size[4-width:]); err != nil {
			return
		}
		for j := range 4 - width {
			size[j] = 0
		}
		data := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(conn, data); err != nil {
			return
		}
		if part != nil {
			*part = data
		}
	}
	ack := binary.BigEndian.AppendUint32(nil, uint32(len(s.refusal)))
	if _, err := conn.Write(append(ack, s.refusal...)); err != nil || s.refusal != "" {
		return
	}
	if string(path) != s.target().path {
		s.t.Errorf("path %q", path)
	}
	header, body, err := readTwoPart(bytes.NewReader(payload))
	if err != nil {
		s.t.Error(err)
		return
	}
	q, err := kvevent.DecodeDynamoQuery(body)
	if err != nil {
		s.t.Error(err)
		return
	}
	s.callBack(header, &q)
}

func (s *recoveryServer) callBack(header []byte, q *kvevent.DynamoQuery) {
	var control struct {
		Codec string `json:"payload_codec"`
		Back  struct {
			Info string `json:"info"`
		} `json:"connection_info"`
	}
	var info struct{ Address, Subject string }
	if err := errors.Join(json.Unmarshal(header, &control), json.Unmarshal([]byte(control.Back.Info), &info)); err != nil || control.Codec != "msgpack" {
		s.t.Errorf("control header %s: %v", header, err)
		return
	}
	if s.stranger {
		if conn, err := net.Dial("tcp", info.Address); err == nil {
			conn.Write(appendTwoPart(nil, []byte(`{"subject":"mine"}`), nil))
			conn.Close()
		}
	}
	conn, err := net.Dial("tcp", info.Address)
	if err != nil {
		return
	}
	defer conn.Close()
	hello, err := json.Marshal(map[string]string{"subject": info.Subject, "stream_type": "response"})
	if err != nil {
		s.t.Error(err)
	}
	prologue := s.prologue
	if prologue == "" {
		prologue = `{"error":null}`
	}
	out := appendTwoPart(nil, hello, nil)
	out = appendTwoPart(out, []byte(prologue), nil)
	if s.answer != nil {
		out = appendTwoPart(out, nil, kvevent.AppendDynamoReply(nil, q, s.answer(q)))
	}
	out = appendTwoPart(out, nil, kvevent.AppendDynamoFinal(nil))
	out = appendTwoPart(out, []byte(`"sentinel"`), nil)
	conn.Write(out) // the asker has what it wants before the end
}

func TestAskSpeaksTheRequestPlane(t *testing.T) {
	w := newFakeWorker(kv.Worker{ID: 1<<64 - 1, Rank: 2}, 8)
	w.store(kv.TierDevice, 0, 100, 1, 2, 3)
	w.store(kv.TierHost, 100, 101, 2)
	s := newRecoveryServer(t, w.answer)
	s.stranger = true
	q := kvevent.DynamoQuery{Worker: w.worker, KnowsDumpFailed: true}
	got, err := queryTarget(t.Context(), s.target(), &q)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w.answer(&q), got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestAskSaysWhyThereIsNoAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*recoveryServer)
		want   string
	}{
		"refused":    {func(s *recoveryServer) { s.refusal = "Unknown endpoint: x" }, "Unknown endpoint: x"},
		"prologue":   {func(s *recoveryServer) { s.prologue = `{"error":"overloaded"}` }, "overloaded"},
		"no answer":  {func(*recoveryServer) {}, "ended without an answer"},
		"not there":  {func(s *recoveryServer) { s.listener.Close() }, "refused"},
		"not a JSON": {func(s *recoveryServer) { s.prologue = `{` }, "prologue"},
	} {
		s := newRecoveryServer(t, nil)
		c.change(s)
		_, err := queryTarget(t.Context(), s.target(), &kvevent.DynamoQuery{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
}

// TestAskEndsWithItsContext: a target that takes the connection and says nothing
// must hold nobody up for longer than its time.
func TestAskEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var taking sync.WaitGroup
	defer taking.Wait()
	taking.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		if _, err := io.ReadFull(conn, make([]byte, 2)); err != nil {
			t.Error(err)
		}
		cancel()
	})
	_, err = queryTarget(ctx, target{l.Addr().String(), "x"}, &kvevent.DynamoQuery{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that the context has ended", err)
	}
}

func FuzzReadAnswer(f *testing.F) {
	w := newFakeWorker(kv.Worker{ID: 7}, 8)
	w.store(kv.TierDevice, 0, 100, 1, 2)
	q := kvevent.DynamoQuery{Worker: w.worker}
	good := appendTwoPart(nil, []byte(`{"subject":"s"}`), nil)
	good = appendTwoPart(good, []byte(`{"error":null}`), nil)
	good = appendTwoPart(good, nil, kvevent.AppendDynamoReply(nil, &q, w.answer(&q)))
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := readAnswer(bytes.NewReader(data), "s"); (a == nil) != (err != nil) {
			t.Errorf("answer %v, error %v", a, err)
		}
	})
}
