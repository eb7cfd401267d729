package recordedtest

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Dir returns the directory of recordings of real engines and of Dynamo: the one that
// BLOCKYARD_SHARED names, or else shared beside the repository. Recordings are too large for the
// repository. Without them Dir skips the test.
func Dir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("BLOCKYARD_SHARED")
	if dir == "" {
		root, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		for !exists(filepath.Join(root, "go.mod")) && root != filepath.Dir(root) {
			root = filepath.Dir(root)
		}
		dir = filepath.Join(filepath.Dir(root), "shared")
	}
	if !exists(filepath.Join(dir, "golden")) {
		t.Skipf("no recordings in %s", dir)
	}
	return dir
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Line is one line of a recording. Decoded is the recorder's own reading
// of the payload.
type Line struct {
	Kind    string
	Frames  []string
	Hex     string
	Subject string
	What    string
	Decoded json.RawMessage
}

// Read returns the lines of a file of recordings, which are JSON objects. It fails the test for a
// damaged file.
func Read(t *testing.T, path string) []Line {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []Line
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<24)
	for scanner.Scan() {
		var l Line
		if err := json.Unmarshal(scanner.Bytes(), &l); err != nil {
			t.Fatalf("%s line %d: %v", path, len(lines)+1, err)
		}
		lines = append(lines, l)
	}
	if err := scanner.Err(); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return lines
}

// Report puts a count where a reader of the test's output sees it.
func Report(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Attr("checked", fmt.Sprintf(format, args...))
}

// Unhex returns the bytes of hexadecimal digits. It fails the test for other text.
func Unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// DynamoFiles returns the names of the recordings of Dynamo that hold engine frames or envelopes.
func DynamoFiles() []string {
	return []string{"mocker-dp2-host-tier.jsonl", "mocker-zmq-and-nats.jsonl", "relay-zmq-to-nats.jsonl", "other-subjects.jsonl"}
}

// ReadDynamo returns the lines of a file of recordings of Dynamo 1.6. Without the file it skips
// the test.
func ReadDynamo(t *testing.T, name string) []Line {
	t.Helper()
	path := filepath.Join(Dir(t), "golden", "dynamo-1.6", name)
	if !exists(path) {
		t.Skipf("no recording %s", path)
	}
	return Read(t, path)
}

// Vectors returns the bytes by name of a file of golden vectors: on each line a name and bytes in
// hexadecimal. A line that begins with # is a comment.
func Vectors(tb testing.TB, path string) map[string][]byte {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	vectors := make(map[string][]byte)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, digits, ok := strings.Cut(lines.Text(), " ")
		if !ok || name == "#" {
			continue
		}
		b, err := hex.DecodeString(digits)
		if err != nil {
			tb.Fatalf("vector %s: %v", name, err)
		}
		vectors[name] = b
	}
	if err := lines.Err(); err != nil {
		tb.Fatal(err)
	}
	return vectors
}
