package oplog

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small returns a log with a record of each kind, two engines.
func small(t testing.TB) []uint64 {
	t.Helper()
	b, err := NewBuilder(2, 16)
	for _, err := range []error{
		err,
		b.Stored(1, 0, []kvevent.StoredBlock{{Hash: 10, Local: 10}, {Hash: 11, Local: 20}}),
		b.Query(1, []kv.LocalHash{10, 20, 30}),
		b.Removed(1, []kv.SequenceHash{11}),
		b.Stored(0, 10, []kvevent.StoredBlock{{Hash: 12, Local: 40}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.Finish(Answers{Memberships: 2, Distinct: 2, Score: 2, Best: 2, FinalScore: 1, FinalBest: 1})
}

// A log that was built, saved and opened has the records and answers it was given.
func TestALogComesBackAsItWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := Save(path, small(t)); err != nil {
		t.Fatal(err)
	}
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Header{
		Engines: 2, BlockTokens: 16, Records: 4, Queries: 1, Stored: 3, Removed: 1, Queried: 3,
		Answers: Answers{2, 2, 2, 2, 1, 1},
	}
	if l.Header() != want {
		t.Errorf("header %+v, want %+v", l.Header(), want)
	}
	var ops []Op
	for i, r := range l.Records() {
		ops = append(ops, r.Op)
		switch i {
		case 0:
			if r.Engine != 1 || r.Parent != 0 || !slices.Equal(r.Blocks, []kvevent.StoredBlock{{Hash: 10, Local: 10}, {Hash: 11, Local: 20}}) {
				t.Errorf("record 0: %+v", r)
			}
		case 1:
			if r.Engine != 1 || !slices.Equal(r.Locals, []kv.LocalHash{10, 20, 30}) || r.Blocks != nil || r.Removed != nil {
				t.Errorf("record 1: %+v", r)
			}
		case 2:
			if r.Engine != 1 || !slices.Equal(r.Removed, []kv.SequenceHash{11}) {
				t.Errorf("record 2: %+v", r)
			}
		case 3:
			if r.Engine != 0 || r.Parent != 10 {
				t.Errorf("record 3: %+v", r)
			}
		}
	}
	if !slices.Equal(ops, []Op{Stored, Query, Removed, Stored}) {
		t.Errorf("operations %v", ops)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// Each field is checked, and the error says where the log is wrong.
func TestParseNamesTheFieldThatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w []uint64) []uint64
		want   string
	}{
		{"empty", func(w []uint64) []uint64 { return nil }, "0 words"},
		{"another format", func(w []uint64) []uint64 { w[0]++; return w }, "KVOPLOG1"},
		{"no engine", func(w []uint64) []uint64 { w[1] = 0; return w }, "word 1 (engines) is 0"},
		{"block of no tokens", func(w []uint64) []uint64 { w[2] = 0; return w }, "word 2 (tokens in a block)"},
		{"reserved word", func(w []uint64) []uint64 { w[15] = 1; return w }, "word 15 (reserved)"},
		{"number of records", func(w []uint64) []uint64 { w[3]++; return w }, "word 3 (records) is 5, but the log has 4"},
		{"number of queries", func(w []uint64) []uint64 { w[7] = 0; return w }, "word 7 (queries) is 0"},
		{"operation", func(w []uint64) []uint64 { w[16] = 4; return w }, "record 0 at word 16: word 0 (operation) is 4"},
		{"reserved byte", func(w []uint64) []uint64 { w[16] |= 1 << 8; return w }, "must be 0"},
		{"engine out of range", func(w []uint64) []uint64 { w[16] = 1 | 2<<32; return w }, "word 0 (engine) is 2, want 0 to 1"},
		{"stored nothing", func(w []uint64) []uint64 { w[17] = 0; return w }, "record 0 at word 16: word 1 (items) is 0"},
		{"cut short", func(w []uint64) []uint64 { return w[:len(w)-1] }, "record 3 at word 31: word 1 (items) is 1, which takes 5 words of 4"},
		{"half a head", func(w []uint64) []uint64 { return append(w, 3) }, "word 1 (items) is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Parse(c.change(small(t))); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// Files that cannot be logs are refused, with their path.
func TestOpenNamesAFileThatIsNoLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, data := range []string{"", "KVOPLOG", strings.Repeat("KVOPLOG2", 20)} {
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: error %v, want one with the path", data, err)
		}
	}
}

// What the builder refuses leaves it as it was.
func TestBuilderRefusesWhatParseWouldRefuse(t *testing.T) {
	if _, err := NewBuilder(0, 16); err == nil {
		t.Error("a log without engines was begun")
	}
	b, err := NewBuilder(1, 16)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"engine":  b.Query(1, nil),
		"stored":  b.Stored(0, 0, nil),
		"removed": b.Removed(0, nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := b.Query(0, nil); err != nil {
		t.Error(err)
	}
	l, err := Parse(b.Finish(Answers{}))
	if err != nil || l.Header().Records != 1 {
		t.Errorf("%+v, %v", l, err)
	}
}

// Whatever bytes are parsed, the result is an error or a log whose records can all
// be read and agree with its header.
func FuzzParse(f *testing.F) {
	seed := small(f)
	data := make([]byte, 0, 8*len(seed))
	for _, w := range seed {
		data = binary.LittleEndian.AppendUint64(data, w)
	}
	f.Add(data)
	f.Add(data[:130])
	f.Fuzz(func(t *testing.T, data []byte) {
		words := make([]uint64, len(data)/8)
		for i := range words {
			words[i] = binary.LittleEndian.Uint64(data[8*i:])
		}
		l, err := Parse(words)
		if err != nil {
			return
		}
		var got Header
		for _, r := range l.Records() {
			got.Records++
			got.Stored += uint64(len(r.Blocks))
			got.Removed += uint64(len(r.Removed))
			got.Queried += uint64(len(r.Locals))
			if int(r.Engine) >= l.Header().Engines {
				t.Fatalf("engine %d of %d", r.Engine, l.Header().Engines)
			}
		}
		if h := l.Header(); got.Records != h.Records || got.Stored != h.Stored || got.Removed != h.Removed || got.Queried != h.Queried {
			t.Fatalf("read %+v, header %+v", got, h)
		}
	})
}
