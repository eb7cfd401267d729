package mirror

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/recordedtest"
)

// recordedLine is a line of a recording of a real vLLM; see the README beside
// the recordings.
type recordedLine struct {
	Kind       string   `json:"kind"`
	BlockSize  int      `json:"block_size"`
	Frames     []string `json:"frames"`
	PortOffset int      `json:"endpoint_port_offset"`
}

// TestRecordedFramesLeaveTheRightState replays the frames of a real engine and
// compares what is resident after each with a set: in the recordings no block is
// cached twice, so that a removal always means that it is gone, and every count is
// one.
func TestRecordedFramesLeaveTheRightState(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(recordedtest.Dir(t), "golden", "vllm-0.32", "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("no recordings of vLLM")
	}
	frames, blocks := 0, 0
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, b := replayRecording(t, path)
			frames, blocks = frames+f, blocks+b
		})
	}
	recordedtest.Report(t, "replayed %d frames with %d block announcements from %d recordings", frames, blocks, len(files))
}

// engineResidency is the naive twin: engine hashes per tier, as a set.
type engineResidency map[kv.Tier]map[kv.EngineHash]bool

func (r engineResidency) apply(t *testing.T, b *engineevent.Batch) {
	for i := range b.Events {
		e := &b.Events[i]
		tier, ok := kv.TierFromMedium(e.Medium)
		if !ok {
			t.Fatalf("medium %q", e.Medium)
		}
		if r[tier] == nil {
			r[tier] = make(map[kv.EngineHash]bool)
		}
		for _, h := range e.BlockHashes {
			if e.Kind == kvevent.Stored {
				r[tier][h] = true
			} else {
				delete(r[tier], h)
			}
		}
		if e.Kind == kvevent.Cleared {
			delete(r, kv.TierDevice)
		}
	}
}

// recordedRank is one rank of a recording, converted and naive.
type recordedRank struct {
	rec   *residencytest.Recorder
	s     *residency.Stream
	c     *Cache
	naive engineResidency
	dec   engineevent.Decoder
}

func replayRecording(t *testing.T, path string) (frames, blocks int) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ranks := make(map[int]*recordedRank)
	blockSize := 0
	// One of the recordings has requests for full reports; all others, reloads by a
	// connector included, must do without the option.
	fullReports := filepath.Base(path) == "bytes-cbor-seed0.jsonl"
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 4<<20)
	for scan.Scan() {
		var line recordedLine
		if err := json.Unmarshal(scan.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		switch line.Kind {
		case "meta":
			blockSize = line.BlockSize
		case "frame":
			r := ranks[line.PortOffset]
			if r == nil {
				r = newRecordedRank(t, line.PortOffset, blockSize, fullReports)
				ranks[line.PortOffset] = r
			}
			frames++
			blocks += r.replay(t, line.Frames)
		}
	}
	if err := scan.Err(); err != nil {
		t.Fatal(err)
	}
	for offset, r := range ranks {
		st, dropped := r.s.Status(), r.c.count.Dropped()
		t.Logf("rank %d: %d batches, %d resident, last event %d, %d reannounced, dropped %v",
			offset, r.c.count.Batches.Load(), st.Blocks, st.LastEventID, r.c.count.Reannounced.Load(), dropped)
		if len(dropped) > 0 || st.Health != kvevent.HealthExact {
			t.Errorf("health %s, dropped %v", st.Health, dropped)
		}
	}
	return frames, blocks
}

func newRecordedRank(t *testing.T, rank, blockSize int, fullReports bool) *recordedRank {
	rec := residencytest.NewRecorder(t)
	s := residency.NewStream(testOwner, rec)
	c := New(Config{
		Stream: s, Rank: kv.DPRank(rank), BlockSize: blockSize, MaxBlocks: 1 << 20, FullReports: fullReports, Counters: new(Counters),
	})
	return &recordedRank{rec: rec, s: s, c: c, naive: make(engineResidency)}
}

func (r *recordedRank) replay(t *testing.T, parts []string) (blocks int) {
	raw := make([][]byte, len(parts))
	for i, p := range parts {
		raw[i] = recordedtest.Unhex(t, p)
	}
	if len(raw) != 3 {
		t.Fatalf("a message of %d parts", len(raw))
	}
	var b engineevent.Batch
	if err := r.dec.Decode(raw[2], &b); err != nil || len(b.Bad) > 0 {
		t.Fatal(err, b.Bad)
	}
	for i := range b.Events {
		blocks += len(b.Events[i].BlockHashes)
	}
	r.c.Apply(&b)
	r.s.Flush()
	r.naive.apply(t, &b)

	want := make(map[residencytest.Pair]struct{})
	for tier, hashes := range r.naive {
		for h := range hashes {
			slot, _ := r.c.known.Find(uint64(h))
			r.s.Update(func(tx *residency.Tx) {
				want[residencytest.Pair{Tier: tier, Hash: tx.Hash(r.c.known.At(slot).slot)}] = struct{}{}
			})
			if n := r.c.known.At(slot).refs.Of(tier); n != 1 {
				t.Errorf("block %x counts %d times in %s", uint64(h), n, tier)
			}
		}
	}
	if got := r.rec.Resident(); !maps.Equal(got, want) {
		t.Errorf("%d blocks resident, want %d", len(got), len(want))
	}
	residencytest.Check(t, r.s, r.rec.Resident())
	return blocks
}
