package kvevent

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// dynamoFiles are the recordings of Dynamo that hold engine frames or envelopes.
var dynamoFiles = []string{"mocker-dp2-host-tier.jsonl", "mocker-zmq-and-nats.jsonl", "relay-zmq-to-nats.jsonl", "other-subjects.jsonl"}

func dynamoRecording(t *testing.T, name string) []recordLine {
	t.Helper()
	path := filepath.Join(sharedDir(t), "golden", "dynamo-1.6", name)
	if !exists(path) {
		t.Skipf("no recording %s", path)
	}
	return recording(t, path)
}

func TestDynamoFramesAreDecodedAsTheirRecorderReadThem(t *testing.T) {
	frames, bad := 0, 0
	var d Decoder
	var b EngineBatch
	for _, name := range dynamoFiles {
		for _, l := range dynamoRecording(t, name) {
			if l.Kind != "zmq" {
				continue
			}
			if err := d.Decode(unhex(t, l.Frames[len(l.Frames)-1]), &b); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			want := batchFromJSON(t, l.Decoded)
			sent := len(want.Events)
			want.Events = slices.DeleteFunc(want.Events, func(e EngineEvent) bool { return e.Kind == 0 })
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
	report(t, "decoded %d engine frames of the Dynamo recordings, unknown events among them: %d", frames, bad)
}

// TestDynamoEnvelopesAreDecodedAndEncodedToTheSameBytes also checks that the
// event plane's other messages are refused. Dynamo 1.6 writes a residency
// domain that we leave out, so our bytes are compared with it put back in.
func TestDynamoEnvelopesAreDecodedAndEncodedToTheSameBytes(t *testing.T) {
	envelopes, events, others := 0, 0, 0
	var d EnvelopeDecoder
	var e Envelope
	for _, name := range dynamoFiles {
		for _, l := range dynamoRecording(t, name) {
			if l.Kind != "nats" {
				continue
			}
			body := unhex(t, l.Hex)
			err := d.Decode(body, &e)
			if !strings.HasSuffix(l.Subject, ".kv-events") {
				if err == nil {
					t.Errorf("%s: a message of %s was taken for KV events", name, l.Subject)
				}
				others++
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			want := envelopeFromJSON(t, l.Decoded)
			if diff := cmp.Diff(want, &e, visible); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", name, diff)
			}
			if got := withResidency(t, AppendEnvelope(nil, &e)); string(got) != string(body) {
				t.Errorf("%s: got  %x\nwant %x", name, got, body)
			}
			envelopes++
			events += len(e.Events)
		}
	}
	if d.Bad+d.Skipped > 0 {
		t.Errorf("bad %d, skipped %d", d.Bad, d.Skipped)
	}
	report(t, "decoded and re-encoded %d Dynamo envelopes with %d events; refused %d other messages", envelopes, events, others)
}

// withResidency puts residency_domain, "worker", behind the storage_tier of
// every event of an envelope.
func withResidency(t *testing.T, envelope []byte) []byte {
	t.Helper()
	var e Envelope
	if err := new(EnvelopeDecoder).Decode(envelope, &e); err != nil {
		t.Fatal(err)
	}
	payload := msgp.AppendArrayHeader(nil, uint32(len(e.Events)))
	for i := range e.Events {
		ev := appendRouterEvent(nil, &e.Events[i])
		event := bytes.Index(ev, wire(t, "event"))
		payload = append(payload, 0x84)
		payload = append(payload, ev[1:event]...)
		payload = append(payload, wire(t, "residency_domain")...)
		payload = append(payload, wire(t, "worker")...)
		payload = append(payload, ev[event:]...)
	}
	return wire(t, dict{
		"publisher_id", e.PublisherID, "sequence", e.Sequence, "published_at", e.PublishedAt, "topic", e.Topic, "payload", payload,
	})
}

func envelopeFromJSON(t *testing.T, raw []byte) *Envelope {
	t.Helper()
	var v struct {
		PublisherID uint64 `json:"publisher_id"`
		Sequence    uint64
		PublishedAt uint64 `json:"published_at"`
		Topic       string
		Payload     struct{ Decoded []dynamoEvent }
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	e := &Envelope{PublisherID: v.PublisherID, Sequence: v.Sequence, PublishedAt: v.PublishedAt, Topic: v.Topic}
	for _, ev := range v.Payload.Decoded {
		e.Events = append(e.Events, ev.routerEvent(t))
	}
	return e
}

type dynamoEvent struct {
	WorkerID    uint64 `json:"worker_id"`
	StorageTier string `json:"storage_tier"`
	Event       struct {
		EventID uint64 `json:"event_id"`
		Rank    uint32 `json:"dp_rank"`
		Data    json.RawMessage
	}
}

func (d *dynamoEvent) routerEvent(t *testing.T) RouterEvent {
	t.Helper()
	tier, err := kv.ParseTier(d.StorageTier)
	if err != nil {
		t.Fatal(err)
	}
	e := RouterEvent{
		Owner: kv.Owner{ID: d.WorkerID, Rank: kv.DPRank(d.Event.Rank)}, Tier: tier, ID: d.Event.EventID, Kind: Cleared,
	}
	if string(d.Event.Data) == `"cleared"` {
		return e
	}
	var data struct {
		Stored *struct {
			Parent *kv.SequenceHash `json:"parent_hash"`
			Start  *uint32          `json:"start_position"`
			Blocks []struct {
				Hash  kv.SequenceHash `json:"block_hash"`
				Local kv.LocalHash    `json:"tokens_hash"`
			}
		}
		Removed *struct {
			Hashes []kv.SequenceHash `json:"block_hashes"`
		}
	}
	if err := json.Unmarshal(d.Event.Data, &data); err != nil {
		t.Fatal(err)
	}
	if data.Removed != nil {
		e.Kind, e.Removed = Removed, data.Removed.Hashes
		return e
	}
	e.Kind = Stored
	if data.Stored.Parent != nil {
		e.Parent, e.HasParent = *data.Stored.Parent, true
	}
	if data.Stored.Start != nil {
		e.StartPosition, e.HasStart = *data.Stored.Start, true
	}
	for _, b := range data.Stored.Blocks {
		e.Blocks = append(e.Blocks, StoredBlock{b.Hash, b.Local})
	}
	return e
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
func (f *hashFollower) stored(ev *EngineEvent) {
	parent, root := ev.Parent, !ev.HasParent
	seed := kv.LocalSeed(ev.LoRAName, ev.Salt)
	for i, local := range f.hasher.AppendLocals(nil, ev.Tokens, int(ev.BlockSize), seed) {
		f.blocks[ev.BlockHashes[i]] = followedBlock{local, parent, root}
		parent, root = ev.BlockHashes[i], false
	}
}

// published compares a block of the publisher.
func (f *hashFollower) published(t *testing.T, block StoredBlock) {
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
	var b EngineBatch
	var e Envelope
	for _, l := range dynamoRecording(t, "relay-zmq-to-nats.jsonl") {
		switch l.Kind {
		case "zmq":
			if err := new(Decoder).Decode(unhex(t, l.Frames[2]), &b); err != nil {
				t.Fatal(err)
			}
			for i := range b.Events {
				if !bytes.Contains(l.Decoded, []byte(`"cache_salt"`)) {
					b.Events[i].Salt = ""
				}
				f.stored(&b.Events[i])
			}
		case "nats":
			if err := new(EnvelopeDecoder).Decode(unhex(t, l.Hex), &e); err != nil {
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
	report(t, "recomputed %d tokens_hash and %d chained sequence hashes of Dynamo's publisher", f.checked, f.chained)
}
