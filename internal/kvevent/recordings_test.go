package kvevent

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// sharedDir is where recordings of real engines and of Dynamo lie: the
// directory named by BLOCKYARD_SHARED, or else shared beside the repository.
// They are too large to be part of it; without them the test is skipped.
func sharedDir(t *testing.T) string {
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

// recordLine is one line of a recording. Decoded is the recorder's own reading
// of the payload.
type recordLine struct {
	Kind    string
	Frames  []string
	Hex     string
	Subject string
	What    string
	Decoded json.RawMessage
}

// recording reads a file of recordings.
func recording(t *testing.T, path string) []recordLine {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []recordLine
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<24)
	for scanner.Scan() {
		var l recordLine
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

// report puts a count where a reader of the test's output sees it.
func report(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Attr("checked", fmt.Sprintf(format, args...))
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// jsonValue decodes JSON with exact integers.
func jsonValue(t *testing.T, raw []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVLLMRecordingsAreDecodedAsTheirRecorderReadThem(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(sharedDir(t), "golden", "vllm-0.32", "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Skipf("no vLLM recordings: %v", err)
	}
	frames, replayed, events, blocks := 0, 0, 0, 0
	var d Decoder
	var b EngineBatch
	for _, file := range files {
		live := map[string]string{} // sequence number and payload of live frames
		for _, l := range recording(t, file) {
			if n := len(l.Frames); l.Kind != "frame" && l.Kind != "replay_reply" || l.Frames[n-1] == "" {
				continue
			}
			n := len(l.Frames)
			payload := unhex(t, l.Frames[n-1])
			if err := d.Decode(payload, &b); err != nil || len(b.Bad) > 0 {
				t.Errorf("%s: %v, bad %v", filepath.Base(file), err, b.Bad)
				continue
			}
			if l.Kind == "replay_reply" {
				replayed++
				if seen, ok := live[l.Frames[n-2]]; ok && seen != l.Frames[n-1] {
					t.Errorf("%s: the replayed frame %s differs", filepath.Base(file), l.Frames[n-2])
				}
				continue
			}
			live[l.Frames[n-2]] = l.Frames[n-1]
			if want := batchFromJSON(t, l.Decoded); cmp.Diff(want, &b, visible) != "" {
				t.Errorf("%s: (-want +got)\n%s", filepath.Base(file), cmp.Diff(want, &b, visible))
			}
			checkRoundTrip(t, &b)
			frames++
			events += len(b.Events)
			for i := range b.Events {
				blocks += len(b.Events[i].BlockHashes)
			}
		}
	}
	report(t, "decoded %d frames (%d live, %d replayed) of %d vLLM recordings: %d events, %d blocks", frames+replayed, frames, replayed, len(files), events, blocks)
}

// checkRoundTrip checks that what was decoded survives our own encoding.
func checkRoundTrip(t *testing.T, b *EngineBatch) {
	t.Helper()
	var again EngineBatch
	if err := new(Decoder).Decode(AppendEngineBatch(nil, b), &again); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(b, &again, visible, cmp.FilterPath(isBad, cmp.Ignore())); diff != "" {
		t.Errorf("decoded again: (-first +second)\n%s", diff)
	}
}

func isBad(p cmp.Path) bool { return strings.HasSuffix(p.String(), "Bad") }

// batchFromJSON is the batch that the recorder's reading describes: map events
// in an array of timestamp, events and rank.
func batchFromJSON(t *testing.T, raw []byte) *EngineBatch {
	t.Helper()
	v := jsonValue(t, raw).([]any)
	b := &EngineBatch{Timestamp: float(t, v[0])}
	if len(v) > 2 && v[2] != nil {
		b.Rank, b.HasRank = kv.DPRank(unsigned(t, v[2])), true
	}
	for _, e := range v[1].([]any) {
		b.Events = append(b.Events, eventFromJSON(t, e.(map[string]any)))
	}
	return b
}

// eventFromJSON leaves Kind zero for a type that is not known.
func eventFromJSON(t *testing.T, m map[string]any) EngineEvent {
	t.Helper()
	e := EngineEvent{Group: NoGroup, Medium: text(m["medium"]), Locality: text(m["locality"])}
	if g, ok := m["group_idx"]; ok {
		e.Group = int32(unsigned(t, g))
	}
	e.SpecKind = text(m["kv_cache_spec_kind"])
	for _, h := range items(m["block_hashes"]) {
		e.BlockHashes = append(e.BlockHashes, kv.EngineHash(unsigned(t, h)))
	}
	switch m["type"] {
	case tagRemoved:
		e.Kind = Removed
		return e
	case tagCleared:
		return EngineEvent{Kind: Cleared, Group: NoGroup}
	case tagStored:
		e.Kind = Stored
	default:
		return EngineEvent{}
	}
	if p := m["parent_block_hash"]; p != nil {
		e.Parent, e.HasParent = kv.EngineHash(unsigned(t, p)), true
	}
	for _, token := range items(m["token_ids"]) {
		e.Tokens = append(e.Tokens, uint32(unsigned(t, token)))
	}
	e.BlockSize = uint32(unsigned(t, m["block_size"]))
	e.LoRAName, e.Salt = text(m["lora_name"]), text(m["cache_salt"])
	if id := m["lora_id"]; id != nil {
		e.LoRAID = int64(unsigned(t, id))
	}
	if keys := items(m["extra_keys"]); e.Salt == "" && len(keys) > 0 {
		for _, key := range items(keys[0]) {
			if s := text(key); s != e.LoRAName {
				e.Salt = s
			}
		}
	}
	return e
}

func items(v any) []any { list, _ := v.([]any); return list }
func text(v any) string { s, _ := v.(string); return s }
func float(t *testing.T, v any) float64 {
	t.Helper()
	f, err := v.(json.Number).Float64()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// unsigned reads an integer, or a hash that the recorder shows as {"hex": …}.
func unsigned(t *testing.T, v any) uint64 {
	t.Helper()
	if m, ok := v.(map[string]any); ok {
		digits := m["hex"].(string)
		v = json.Number("0x" + digits[max(0, len(digits)-16):])
	}
	var n uint64
	if _, err := fmt.Sscan(v.(json.Number).String(), &n); err != nil {
		t.Fatal(err)
	}
	return n
}
