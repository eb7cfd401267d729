package disk

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// serve runs a copier on the values and returns its answers.
func serve(t *testing.T, values ...any) ([]copyReply, error) {
	t.Helper()
	var in, out bytes.Buffer
	for _, v := range values {
		if err := json.NewEncoder(&in).Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	err := ServeCopies(&in, &out)
	var replies []copyReply
	for d := json.NewDecoder(&out); ; {
		var r copyReply
		if e := d.Decode(&r); e == io.EOF {
			return replies, err
		} else if e != nil {
			t.Fatal(e)
		}
		replies = append(replies, r)
	}
}

func TestCopierFillsItsTargetsAndReportsEach(t *testing.T) {
	path := filepath.Join(t.TempDir(), "extent")
	if err := os.WriteFile(path, make([]byte, 4*4096), 0o600); err != nil {
		t.Fatal(err)
	}
	req := copyRequest{Block: 4096, Count: 2, Targets: []copyTarget{{path, 3 * 4096}, {path, 4096}}}
	replies, err := serve(t, req, true, copyRequest{Block: 4096, Count: 1}, true)
	if err != nil {
		t.Fatal(err)
	}
	var done []int
	for _, r := range replies {
		done = append(done, r.Done)
	}
	if len(done) != 5 || done[1] != 1 || done[2] != 2 || done[4] != 1 {
		t.Errorf("answers %v, want ready, 1, 2, ready, 1", done)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	source := make([]byte, 2*4096)
	fillRandom(source, uint64(len(source)))
	if !bytes.Equal(data[3*4096:], source[:4096]) || !bytes.Equal(data[4096:2*4096], source[4096:]) {
		t.Error("the targets do not have the source's bytes")
	}
	if zeros := make([]byte, 4096); !bytes.Equal(data[:4096], zeros) || !bytes.Equal(data[2*4096:3*4096], zeros) {
		t.Error("something else was written to")
	}
}

func TestCopierRefusesWhatItCannotDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "extent")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, req := range map[string]copyRequest{
		"0 blocks":        {Block: 4096},
		"blocks of 0":     {Count: 1},
		"2 targets":       {Block: 4096, Count: 1, Targets: make([]copyTarget, 2)},
		"offset 1 of":     {Block: 4096, Count: 1, Targets: []copyTarget{{path, 1}}},
		"offset 8192 of":  {Block: 4096, Count: 1, Targets: []copyTarget{{path, 8192}}},
		"no such file":    {Block: 4096, Count: 1, Targets: []copyTarget{{path + "-", 0}}},
		"300000000 bytes": {Block: 300_000_000, Count: 10},
	} {
		if _, err := serve(t, req, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}
