package engineevent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/recordedtest"
)

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
	files, err := filepath.Glob(filepath.Join(recordedtest.Dir(t), "golden", "vllm-0.32", "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Skipf("no vLLM recordings: %v", err)
	}
	frames, replayed, events, blocks := 0, 0, 0, 0
	var d Decoder
	var b Batch
	for _, file := range files {
		live := map[string]string{} // sequence number and payload of live frames
		for _, l := range recordedtest.Read(t, file) {
			if n := len(l.Frames); l.Kind != "frame" && l.Kind != "replay_reply" || l.Frames[n-1] == "" {
				continue
			}
			n := len(l.Frames)
			payload := recordedtest.Unhex(t, l.Frames[n-1])
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
	recordedtest.Report(t, "decoded %d frames (%d live, %d replayed) of %d vLLM recordings: %d events, %d blocks", frames+replayed, frames, replayed, len(files), events, blocks)
}

// checkRoundTrip checks that what was decoded survives our own encoding.
func checkRoundTrip(t *testing.T, b *Batch) {
	t.Helper()
	var again Batch
	if err := new(Decoder).Decode(AppendBatch(nil, b), &again); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(b, &again, visible, cmp.FilterPath(isBad, cmp.Ignore())); diff != "" {
		t.Errorf("decoded again: (-first +second)\n%s", diff)
	}
}

func isBad(p cmp.Path) bool { return strings.HasSuffix(p.String(), "Bad") }

// batchFromJSON is the batch that the recorder's reading describes: map events
// in an array of timestamp, events and rank.
func batchFromJSON(t *testing.T, raw []byte) *Batch {
	t.Helper()
	v := jsonValue(t, raw).([]any)
	b := &Batch{Timestamp: float(t, v[0])}
	if len(v) > 2 && v[2] != nil {
		b.Rank, b.HasRank = kv.DPRank(unsigned(t, v[2])), true
	}
	for _, e := range v[1].([]any) {
		b.Events = append(b.Events, eventFromJSON(t, e.(map[string]any)))
	}
	return b
}

// eventFromJSON leaves Kind zero for a type that is not known.
func eventFromJSON(t *testing.T, m map[string]any) Event {
	t.Helper()
	e := Event{Group: NoGroup, Medium: text(m["medium"]), Locality: text(m["locality"])}
	if g, ok := m["group_idx"]; ok {
		e.Group = int32(unsigned(t, g))
	}
	e.SpecKind = text(m["kv_cache_spec_kind"])
	for _, h := range items(m["block_hashes"]) {
		e.BlockHashes = append(e.BlockHashes, kv.EngineHash(unsigned(t, h)))
	}
	switch m["type"] {
	case tagRemoved:
		e.Kind = kvevent.Removed
		return e
	case tagCleared:
		return Event{Kind: kvevent.Cleared, Group: NoGroup}
	case tagStored:
		e.Kind = kvevent.Stored
	default:
		return Event{}
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

func TestDynamoFramesAreDecodedAsTheirRecorderReadThem(t *testing.T) {
	frames, bad := 0, 0
	var d Decoder
	var b Batch
	for _, name := range recordedtest.DynamoFiles() {
		for _, l := range recordedtest.ReadDynamo(t, name) {
			if l.Kind != "zmq" {
				continue
			}
			if err := d.Decode(recordedtest.Unhex(t, l.Frames[len(l.Frames)-1]), &b); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			want := batchFromJSON(t, l.Decoded)
			sent := len(want.Events)
			want.Events = slices.DeleteFunc(want.Events, func(e Event) bool { return e.Kind == 0 })
			if len(b.Bad) != sent-len(want.Events) {
				t.Errorf("%s: bad %v, want %d", name, b.Bad, sent-len(want.Events))
			}
			bad += len(b.Bad)
			b.Bad = nil
			if diff := cmp.Diff(want, &b, visible); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", name, diff)
			}
			checkRoundTrip(t, &b)
			frames++
		}
	}
	recordedtest.Report(t, "decoded %d engine frames of the Dynamo recordings, unknown events among them: %d", frames, bad)
}

// hashFollower computes from engine frames what a publisher must say of them.
type hashFollower struct {
	hasher   kv.Hasher
	blocks   map[kv.EngineHash]followedBlock
	sequence map[kv.EngineHash]kv.SequenceHash
	// checked and chained count the blocks compared and those with a parent.
	checked, chained int
}

type followedBlock struct {
	local  kv.LocalHash
	parent kv.EngineHash
	root   bool
}

// stored takes in a stored event of the engine.
func (f *hashFollower) stored(ev *Event) {
	parent, root := ev.Parent, !ev.HasParent
	seed := kv.LocalSeed(ev.LoRAName, ev.Salt)
	for i, local := range f.hasher.AppendLocals(nil, ev.Tokens, int(ev.BlockSize), seed) {
		f.blocks[ev.BlockHashes[i]] = followedBlock{local, parent, root}
		parent, root = ev.BlockHashes[i], false
	}
}

// published compares a block of the publisher.
func (f *hashFollower) published(t *testing.T, block kvevent.StoredBlock) {
	t.Helper()
	engine := kv.EngineHash(block.Hash)
	known, ok := f.blocks[engine]
	if !ok || known.local != block.Local {
		t.Errorf("block %#x: tokens_hash %d, ours %d", uint64(engine), block.Local, known.local)
	}
	f.checked++
	if known.root {
		f.sequence[engine] = kv.SequenceHash(known.local)
	} else if parent, ok := f.sequence[known.parent]; ok {
		f.sequence[engine] = kv.Chain(parent, known.local)
		f.chained++
	}
}

// TestDynamoTokenHashesAreReproduced follows a real Dynamo publisher: it gets
// engine frames and publishes envelopes, whose tokens_hash must be ours. Salts
// in extra keys are exempt, because it ignores them.
func TestDynamoTokenHashesAreReproduced(t *testing.T) {
	f := hashFollower{blocks: map[kv.EngineHash]followedBlock{}, sequence: map[kv.EngineHash]kv.SequenceHash{}}
	var b Batch
	var e kvevent.Envelope
	for _, l := range recordedtest.ReadDynamo(t, "relay-zmq-to-nats.jsonl") {
		switch l.Kind {
		case "zmq":
			if err := new(Decoder).Decode(recordedtest.Unhex(t, l.Frames[2]), &b); err != nil {
				t.Fatal(err)
			}
			for i := range b.Events {
				if !bytes.Contains(l.Decoded, []byte(`"cache_salt"`)) {
					b.Events[i].Salt = ""
				}
				f.stored(&b.Events[i])
			}
		case "nats":
			if err := new(kvevent.EnvelopeDecoder).Decode(recordedtest.Unhex(t, l.Hex), &e); err != nil {
				t.Fatal(err)
			}
			for _, ev := range e.Events {
				for _, block := range ev.Blocks {
					f.published(t, block)
				}
			}
		}
	}
	// The first tokens are 1, 2, 3 …: blocks of four give a published chain.
	for engine, want := range map[kv.EngineHash]kv.SequenceHash{
		1<<63 + 100: 14643705804678351452, 1<<63 + 101: 4945711292740353085, 1<<63 + 102: 12583592247330656132,
	} {
		if f.sequence[engine] != want {
			t.Errorf("block %#x: sequence hash %d, want %d", uint64(engine), f.sequence[engine], want)
		}
	}
	if f.checked == 0 {
		t.Error("the recording names no block")
	}
	recordedtest.Report(t, "recomputed %d tokens_hash and %d chained sequence hashes of Dynamo's publisher", f.checked, f.chained)
}
