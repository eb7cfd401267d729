package mirror

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestCacheScripts: engine events in, router events out. Commands:
//
//	batch [rank=N] [bad=N]    one engine event per input line (see parseEvent),
//	                          and N that could not be decoded
//	lost, restarted           what the sequencer tells
//	listed [1 2 ...]          a loss made up for with the engine's list
//	hidden                    a loss for which there is no list yet
//	caught-up                 the queue of frames is empty
//	wait DURATION             the clock moves on
//	stats                     counters and health
//
// The block size is 2, the rank 0 and the table holds 16 blocks. The engine is
// one whose requests ask for full reports.
func TestCacheScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		rec := residencytest.NewRecorder(t)
		s := residency.NewStream(testOwner, rec)
		c := newCache(s, 2, 16)
		c.cfg.FullReports = true
		now := time.Unix(1000, 0)
		c.cfg.Now = func() time.Time { return now }
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "batch":
				var b engineevent.Batch
				if d.HasArg("rank") {
					var rank int
					d.ScanArgs(t, "rank", &rank)
					b.Rank, b.HasRank = kv.DPRank(rank), true
				}
				if d.HasArg("bad") {
					var bad int
					d.ScanArgs(t, "bad", &bad)
					b.Bad = slices.Repeat([]error{errors.New("cannot be decoded")}, bad)
				}
				for line := range strings.Lines(d.Input) {
					b.Events = append(b.Events, parseEvent(t, d, line))
				}
				c.Apply(&b)
			case "lost":
				c.Lost()
			case "hidden":
				c.Hide()
			case "caught-up":
				c.CaughtUp()
			case "restarted":
				c.Restarted()
			case "listed":
				var list []kv.EngineHash
				for _, a := range d.CmdArgs {
					n, err := strconv.ParseUint(a.Key, 10, 64)
					if err != nil {
						d.Fatalf(t, "%v", err)
					}
					list = append(list, kv.EngineHash(n))
				}
				c.Listed(list)
			case "wait":
				pause, err := time.ParseDuration(d.CmdArgs[0].Key)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				now = now.Add(pause)
				c.Tick()
			case "stats":
				n := c.count
				out := fmt.Sprintf("health=%s known=%d reannounced=%d", s.Status().Health, n.Known.Load(), n.Reannounced.Load())
				if n.Parked.Load() > 0 {
					out += fmt.Sprintf(" parked=%d spliced=%d waiting=%t", n.Parked.Load(), n.Spliced.Load(), n.ParkedBytes.Load() > 0)
				}
				if n.Unlisted.Load() > 0 {
					out += fmt.Sprintf(" unlisted=%d", n.Unlisted.Load())
				}
				dropped := n.Dropped()
				for _, k := range slices.Sorted(maps.Keys(dropped)) {
					out += fmt.Sprintf(" %s=%d", k, dropped[k])
				}
				return out + "\n"
			default:
				d.Fatalf(t, "unknown command")
			}
			s.Flush()
			residencytest.Check(t, s, rec.Resident())
			return rec.Take()
		})
	})
}

// parseEvent reads "stored 1 2 tokens=1,2,3,4 parent=9 medium=CPU ...".
func parseEvent(t *testing.T, d *datadriven.TestData, line string) engineevent.Event {
	fields := strings.Fields(line)
	e := engineevent.Event{Group: engineevent.NoGroup, BlockSize: 2}
	switch fields[0] {
	case "stored":
		e.Kind = kvevent.Stored
	case "removed":
		e.Kind = kvevent.Removed
	case "cleared":
		e.Kind = kvevent.Cleared
	default:
		d.Fatalf(t, "event %q", line)
	}
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			d.Fatalf(t, "event %q: %v", line, err)
		}
		return n
	}
	for _, f := range fields[1:] {
		key, value, isOption := strings.Cut(f, "=")
		if !isOption {
			e.BlockHashes = append(e.BlockHashes, kv.EngineHash(number(f)))
			continue
		}
		switch key {
		case "tokens":
			for tok := range strings.SplitSeq(value, ",") {
				e.Tokens = append(e.Tokens, uint32(number(tok)))
			}
		case "parent":
			e.Parent, e.HasParent = kv.EngineHash(number(value)), true
		case "mm":
			for obj := range strings.SplitSeq(value, ",") {
				e.Multimodal = append(e.Multimodal, []uint64{number(obj)})
			}
		case "bs":
			e.BlockSize = uint32(number(value))
		case "group":
			e.Group = int32(number(value))
		case "eagle":
			e.Eagle = true
		case "medium":
			e.Medium = value
		case "kind":
			e.SpecKind = value
		case "locality":
			e.Locality = value
		case "ownership":
			e.Ownership = value
		case "salt":
			e.Salt = value
		case "lora":
			e.LoRAName = value
		case "lora-id":
			e.LoRAID = int64(number(value))
		default:
			d.Fatalf(t, "event %q: option %s", line, key)
		}
	}
	return e
}

// FuzzApply: whatever an engine sends, the stream's events, its digest and
// its dump agree, and clearing the engine leaves nothing.
func FuzzApply(f *testing.F) {
	encode := func(events ...engineevent.Event) []byte {
		return engineevent.AppendBatch(nil, &engineevent.Batch{HasRank: true, Events: events})
	}
	cpu := residencytest.StoredEvent(0, 1, 1)
	cpu.Medium = "CPU"
	f.Add(encode(residencytest.StoredEvent(0, 1, 3), residencytest.RemovedEvent(2)), encode(residencytest.StoredEvent(3, 4, 1)))
	f.Add(encode(cpu, residencytest.StoredEvent(0, 1, 2)), encode(engineevent.Event{Kind: kvevent.Cleared, Group: engineevent.NoGroup}))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		rec := residencytest.NewRecorder(t)
		s := residency.NewStream(testOwner, rec)
		c := newCache(s, testBlockSize, 64)
		var dec engineevent.Decoder
		var b engineevent.Batch
		for _, payload := range [][]byte{first, second, first} {
			if dec.Decode(payload, &b) == nil {
				c.Apply(&b)
			}
		}
		s.Flush()
		residencytest.Check(t, s, rec.Resident())
		c.Lost()
		if st := s.Status(); st.Blocks != 0 || st.Digest != 0 {
			t.Errorf("%d blocks left", st.Blocks)
		}
	})
}
