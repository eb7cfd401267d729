package dynamo

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// recordedLine is a line of a recording of a real Dynamo.
type recordedLine struct {
	Kind    string          `json:"kind"`
	Path    string          `json:"path"`
	What    string          `json:"what"`
	Hex     string          `json:"hex"`
	Content json.RawMessage `json:"content"`
}

// recording reads a file of recordings, which lie beside the checkout or where
// BLOCKYARD_SHARED says; without them the test is skipped.
func recording(t *testing.T, name string) []recordedLine {
	t.Helper()
	dir := os.Getenv("BLOCKYARD_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared")
	}
	data, err := os.ReadFile(filepath.Join(dir, "golden", "dynamo-1.6", name))
	if err != nil {
		t.Skipf("no recordings: %v", err)
	}
	var lines []recordedLine
	for d := json.NewDecoder(bytes.NewReader(data)); d.More(); {
		var l recordedLine
		if err := d.Decode(&l); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// TestRecordedDiscoveryIsRead: the records of a real worker, at their paths.
func TestRecordedDiscoveryIsRead(t *testing.T) {
	d := newDirectory(t)
	for _, l := range recording(t, "discovery-file-backend.jsonl") {
		if l.Kind != "file" {
			continue
		}
		path := filepath.Join(d.dir, l.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, l.Content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	v := scan(t, newWatcher(d.dir, endpoint), start)
	if len(v.cards) != 1 || len(v.origins) != 1 || len(v.bad) != 0 {
		t.Fatalf("view %+v, want one card and one source", v)
	}
	for _, c := range v.cards {
		if c.model != "tiny" || c.blockSize != 16 || c.ranks != 1 {
			t.Errorf("card %+v", c)
		}
	}
	for _, all := range v.origins {
		if o := all[0]; o.publisher != 0x109f41fd498827 || o.target.address != "192.0.2.2:42877" {
			t.Errorf("source %+v", o)
		}
	}
}

// TestRecordedRecoveryIsRead: the messages of a real worker's answer, and the
// query of a real router, which ours must equal in form.
func TestRecordedRecoveryIsRead(t *testing.T) {
	var answer []byte
	for _, l := range recording(t, "recovery-query.jsonl") {
		data, err := hex.DecodeString(l.Hex)
		if err != nil {
			t.Fatal(err)
		}
		switch l.What {
		case "request":
			checkRecordedRequest(t, data)
		case "data frame (TreeDump)", "final frame":
			answer = append(answer, data...)
		}
	}
	stream := appendTwoPart(nil, []byte(`{"subject":"s","stream_type":"response"}`), nil)
	stream = append(appendTwoPart(stream, []byte(`{"error":null}`), nil), answer...)
	a, err := readAnswer(bytes.NewReader(stream), "s")
	if err != nil || a.Kind != kvevent.QueryTreeDump || len(a.Events) != 2 {
		t.Errorf("answer %+v, error %v", a, err)
	}
}

func checkRecordedRequest(t *testing.T, data []byte) {
	t.Helper()
	for _, width := range []int{2, 2, 4} { // path, headers, payload
		n := 0
		for _, b := range data[:width] {
			n = n<<8 | int(b)
		}
		data = data[width:]
		if width < 4 {
			data = data[n:]
		}
	}
	_, body, err := readTwoPart(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	q, err := kvevent.DecodeDynamoQuery(body)
	if err != nil {
		t.Fatal(err)
	}
	if again := kvevent.AppendDynamoQuery(nil, &q); !bytes.Equal(again, body) {
		t.Errorf("query\n%x, want\n%x", again, body)
	}
}
