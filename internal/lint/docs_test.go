package lint

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"go/ast"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// hexExample is a fenced block of a document: a name on the first line, then
// bytes in hexadecimal.
type hexExample struct {
	name string
	data []byte
}

func readDocument(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// hexExamples finds the fenced blocks of a language in a document.
func hexExamples(t *testing.T, text, language string) []hexExample {
	t.Helper()
	var found []hexExample
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n([^\n]+)\n(.*?)```").FindAllStringSubmatch(text, -1) {
		data, err := hex.DecodeString(strings.Join(strings.Fields(m[2]), ""))
		if err != nil {
			t.Fatalf("example %s: %v", m[1], err)
		}
		found = append(found, hexExample{m[1], data})
	}
	return found
}

func TestProtocolDocumentShowsFramesThatWeSendAndAccept(t *testing.T) {
	examples := hexExamples(t, readDocument(t, "protocol.md"), "frame")
	if len(examples) < 15 {
		t.Errorf("the document shows %d frames, want at least 15", len(examples))
	}
	for _, e := range examples {
		h, body, err := proto.ParseFrame(e.data)
		if err != nil {
			t.Errorf("%s: %v", e.name, err)
			continue
		}
		if h.Type.String() != e.name {
			t.Errorf("%s: the frame is %s", e.name, h.Type)
		}
		m, _ := proto.NewMessage(h.Type)
		if m != nil {
			if err := proto.Decode(h.Type, body, m); err != nil {
				t.Errorf("%s: %v", e.name, err)
			}
		}
		again, err := proto.AppendFrame(nil, h.Type, h.Corr, m)
		if err != nil || !bytes.Equal(again, e.data) {
			t.Errorf("%s: encoded again as\n% x, %v; the document has\n% x", e.name, again, err, e.data)
		}
	}
}

func TestProtocolDocumentNamesEveryFrameAndKey(t *testing.T) {
	text := readDocument(t, "protocol.md")
	known := 0
	for n := range proto.Type(256) {
		m, ok := proto.NewMessage(n)
		if !ok {
			continue
		}
		known++
		if row := fmt.Sprintf("\n| %d | %s | ", uint16(n), n); !strings.Contains(text, row) {
			t.Errorf("no row of frame %d, %s", uint16(n), n)
		}
		for _, key := range messageKeys(m) {
			if !strings.Contains(text, "`"+key+"`") {
				t.Errorf("key %s of %s is not mentioned", key, n)
			}
		}
	}
	if known < 20 {
		t.Errorf("only %d frames are known", known)
	}
	for _, limit := range []int{proto.MaxFrame, proto.MaxBlocksPerFrame, proto.MaxTokensPerFrame, proto.MaxTokens, proto.MaxWaitMillis} {
		plain := strconv.Itoa(limit)
		if !strings.Contains(strings.ReplaceAll(text, ",", ""), plain) {
			t.Errorf("the limit %s is not mentioned", plain)
		}
	}
}

// messageKeys lists the msgpack keys of a message, nested ones included.
func messageKeys(m proto.Message) []string {
	if m == nil {
		return nil
	}
	var keys []string
	var collect func(reflect.Type)
	collect = func(s reflect.Type) {
		for i := range s.NumField() {
			key, _, _ := strings.Cut(s.Field(i).Tag.Get("msg"), ",")
			keys = append(keys, key)
			switch f := s.Field(i).Type; {
			case f.Kind() == reflect.Struct:
				collect(f)
			case f.Kind() == reflect.Slice && f.Elem().Kind() == reflect.Struct:
				collect(f.Elem())
			}
		}
	}
	collect(reflect.TypeOf(m).Elem())
	return keys
}

func TestEventsDocumentShowsMessagesThatWePublish(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range hexExamples(t, readDocument(t, "events.md"), "message") {
		seen[e.name] = true
		again, err := recode(e)
		if err != nil || !bytes.Equal(again, e.data) {
			t.Errorf("%s: encoded again as\n% x, %v; the document has\n% x", e.name, again, err, e.data)
		}
	}
	for _, name := range []string{"envelope", "announcement", "agent status", "query request", "query reply"} {
		if !seen[name] {
			t.Errorf("the document shows no %s", name)
		}
	}
}

// recode decodes an example and encodes what came out.
func recode(e hexExample) ([]byte, error) {
	switch e.name {
	case "envelope":
		var v kvevent.Envelope
		var d kvevent.EnvelopeDecoder
		err := d.Decode(e.data, &v)
		return kvevent.AppendEnvelope(nil, &v), err
	case "announcement":
		v, err := kvevent.DecodeAnnouncement(e.data)
		return kvevent.AppendAnnouncement(nil, &v), err
	case "agent status":
		var v kvevent.AgentStatus
		_, err := kvevent.DecodeAgentStatus(e.data, &v)
		return kvevent.AppendAgentStatus(nil, &v), err
	case "query request":
		v, err := kvevent.DecodeQueryRequest(e.data)
		return kvevent.AppendQueryRequest(nil, &v), err
	case "query reply":
		v, err := kvevent.DecodeQueryReply(e.data)
		return kvevent.AppendQueryReply(nil, &v), err
	}
	return nil, fmt.Errorf("what is a %q?", e.name)
}

func TestEventsDocumentHasTheRightHashesAndDigests(t *testing.T) {
	text := readDocument(t, "events.md")
	rows := regexp.MustCompile("(?m)^\\| `([0-9a-f]{16})` \\| `([a-z_]+)` \\| `([0-9a-f]{16})` \\|$").FindAllStringSubmatch(text, -1)
	if len(rows) < 6 {
		t.Errorf("the document has %d digest values, want at least 6", len(rows))
	}
	for _, row := range rows {
		tier, err := kv.ParseTier(row[2])
		if err != nil {
			t.Fatal(err)
		}
		h, err := strconv.ParseUint(row[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%016x", kv.Digest(kv.SequenceHash(h), tier)); got != row[3] {
			t.Errorf("mix(%s, %s) is %s, the document says %s", row[1], row[2], got, row[3])
		}
	}

	var hasher kv.Hasher
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	locals := hasher.AppendLocals(nil, tokens, 4, kv.LocalSeed("", ""))
	seqs := kv.AppendSequence(nil, locals)
	sum := kv.Digest(seqs[0], kv.TierHost) + kv.Digest(seqs[1], kv.TierHost) + kv.Digest(seqs[0], kv.TierDisk)
	for _, want := range []string{
		fmt.Sprintf("| LocalHash | `%016x` | `%016x` |", uint64(locals[0]), uint64(locals[1])),
		fmt.Sprintf("| SequenceHash | `%016x` | `%016x` |", uint64(seqs[0]), uint64(seqs[1])),
		fmt.Sprintf("add up to `%016x`", sum),
		fmt.Sprintf("group 1 the names are `%016x` and `%016x`", uint64(kv.InGroup(seqs[0], 1)), uint64(kv.InGroup(seqs[1], 1))),
		fmt.Sprintf("LoRA `adapter-a` %d", kv.LocalSeed("adapter-a", "")),
		fmt.Sprintf("salt `tenant-1` %d", kv.LocalSeed("", "tenant-1")),
		fmt.Sprintf("both %d", kv.LocalSeed("adapter-a", "tenant-1")),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the document does not say %q", want)
		}
	}
}

// The table of what the source documents ask for names a test for what works.
func TestSeedsDocumentNamesTestsThatExist(t *testing.T) {
	names := make(map[string]bool)
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(readDocument(t, "seeds.md"), -1) {
		names[m[1]] = false
	}
	if len(names) < 20 {
		t.Errorf("the document names %d tests, want at least 20", len(names))
	}
	for s := range loadRepository(t).goFiles {
		for _, d := range s.syntax.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				if _, named := names[f.Name.Name]; named {
					names[f.Name.Name] = true
				}
			}
		}
	}
	for name, exists := range names {
		if !exists {
			t.Errorf("docs/seeds.md names %s, which is not there", name)
		}
	}
}
