package zmqsink

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	hash1 = kv.SequenceHash(0x1122334455667788)
	hash2 = kv.SequenceHash(0x99aabbccddeeff00)
	hash3 = kv.SequenceHash(5)
)

// knownTokens are the tokens of blocks in a map.
type knownTokens map[kv.SequenceHash]engineevent.Event

func (k knownTokens) Describe(h kv.SequenceHash, e *engineevent.Event) bool {
	b, ok := k[h]
	if !ok {
		return false
	}
	e.Tokens = append(e.Tokens[:0], b.Tokens...)
	e.BlockSize, e.Eagle, e.LoRAName, e.Salt, e.Multimodal = b.BlockSize, b.Eagle, b.LoRAName, b.Salt, b.Multimodal
	return true
}

func block(tokens ...uint32) engineevent.Event {
	return engineevent.Event{Tokens: tokens, BlockSize: 4}
}

func named(e engineevent.Event, lora, salt string) engineevent.Event {
	e.LoRAName, e.Salt = lora, salt
	return e
}

func storedIn(t kv.Tier, parent kv.SequenceHash, hashes ...kv.SequenceHash) kvevent.RouterEvent {
	e := kvevent.RouterEvent{Kind: kvevent.Stored, Tier: t, Parent: parent, HasParent: parent != 0}
	for _, h := range hashes {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h})
	}
	return e
}

func removedFrom(t kv.Tier, hashes ...kv.SequenceHash) kvevent.RouterEvent {
	return kvevent.RouterEvent{Kind: kvevent.Removed, Tier: t, Removed: hashes}
}

// recordedEncoder is a encoder whose batches end up in payloads, all of one time.
type recordedEncoder struct {
	encoder
	counters counters
	payloads [][]byte
}

func newRecordedEncoder(tokens Tokens) *recordedEncoder {
	s := &recordedEncoder{}
	s.encoder = encoder{
		rank: 3, blockSize: 4, tokens: tokens, count: &s.counters, states: make(map[kv.SequenceHash]blockState),
		send: func(b *engineevent.Batch) {
			b.Timestamp = 1700000000.5
			s.payloads = append(s.payloads, engineevent.AppendBatch(nil, b))
		},
	}
	return s
}

func (s *recordedEncoder) say(events ...kvevent.RouterEvent) {
	for i := range events {
		s.apply(&events[i])
	}
	s.flush()
}

// The bytes are those that msgspec, which vLLM uses, makes of the same dictionaries.
func TestBatchesAreByteForByteWhatVLLMWouldSend(t *testing.T) {
	tokens := knownTokens{
		hash1: block(1, 2, 3, 4), hash2: block(128000, 6, 7, 4294967295), hash3: block(9, 10, 11, 12),
		21: named(block(1, 2, 3, 4), "adapter-a", "tenant-a"), 22: named(block(5, 6, 7, 8), "adapter-a", "tenant-a"),
		31: block(1, 2, 3, 4), 32: {Tokens: []uint32{5, 6, 7, 8}, BlockSize: 4, Multimodal: [][]uint64{{1<<63 + 1}}},
	}
	cases := []struct {
		name   string
		events []kvevent.RouterEvent
		want   string
	}{
		{
			"two blocks, then one behind them in host memory",
			[]kvevent.RouterEvent{
				storedIn(kv.TierDevice, 0, hash1), storedIn(kv.TierDevice, hash1, hash2), storedIn(kv.TierHost, hash2, hash3),
			}, `93cb41d954fc402000009288a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf112233445566
				7788cf99aabbccddeeff00b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739801020304ce0001f400
				0607ceffffffffaa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0
				88a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739105b1706172656e745f626c6f636b5f686173
				68cf99aabbccddeeff00a9746f6b656e5f69647394090a0b0caa626c6f636b5f73697a6504a76c6f72615f6964c0a66d6564
				69756da94350555f5449455231a96c6f72615f6e616d65c003`,
		},
		{
			"adapter and salt",
			[]kvevent.RouterEvent{storedIn(kv.TierDevice, 0, 21), storedIn(kv.TierDisk, 21, 22)},
			`93cb41d954fc402000009289a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739115b1706172656e
			 745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964c0a6
			 6d656469756da3475055a96c6f72615f6e616d65a9616461707465722d61aa63616368655f73616c74a874656e616e742d61
			 89a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739116b1706172656e745f626c6f636b5f686173
			 6815a9746f6b656e5f6964739405060708aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da94350555f
			 5449455232a96c6f72615f6e616d65a9616461707465722d61aa63616368655f73616c74a874656e616e742d6103`,
		},
		{
			"multimodal",
			[]kvevent.RouterEvent{storedIn(kv.TierDevice, 0, 31, 32)},
			`93cb41d954fc402000009189a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573921f20b170617265
			 6e745f626c6f636b5f68617368c0a9746f6b656e5f696473980102030405060708aa626c6f636b5f73697a6504a76c6f7261
			 5f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0ae626c6f636b5f6d6d5f696e666f7392c081aa6d6d5f6f62
			 6a656374739182a76d6d5f68617368cf8000000000000001a76f6666736574739003`,
		},
		{
			"removed and cleared",
			[]kvevent.RouterEvent{removedFrom(kv.TierDevice, hash1), removedFrom(kv.TierDevice, hash2), removedFrom(kv.TierHost, hash1), {Kind: kvevent.Cleared}},
			`93cb41d954fc402000009383a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657392cf1122334455
			 667788cf99aabbccddeeff00a66d656469756da347505583a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68
			 617368657391cf1122334455667788a66d656469756da94350555f544945523181a474797065b0416c6c426c6f636b73436c
			 656172656403`,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newRecordedEncoder(tokens)
			if c.events[0].Kind != kvevent.Stored {
				s.states[hash1], s.states[hash2] = blockState{announced: 0b11}, blockState{announced: 0b1}
			}
			s.say(c.events...)
			want := strings.Join(strings.Fields(c.want), "")
			if len(s.payloads) != 1 || hex.EncodeToString(s.payloads[0]) != want {
				t.Errorf("payloads are\n%x\nwant\n%s", s.payloads, want)
			}
		})
	}
}

func decode(t *testing.T, payload []byte) []engineevent.Event {
	t.Helper()
	var d engineevent.Decoder
	var b engineevent.Batch
	if err := d.Decode(payload, &b); err != nil || len(b.Bad) > 0 || !b.HasRank || b.Rank != 3 {
		t.Fatalf("batch of rank %d: %v, %v", b.Rank, err, b.Bad)
	}
	return slices.Clone(b.Events)
}

func TestBlockWithoutTokensIsLeftOutWithWhatFollowsIt(t *testing.T) {
	s := newRecordedEncoder(knownTokens{1: block(1, 1, 1, 1), 3: block(3, 3, 3, 3), 4: block(4, 4, 4, 4)})
	s.say(storedIn(kv.TierDevice, 0, 1, 2, 3), storedIn(kv.TierHost, 3, 4), removedFrom(kv.TierDevice, 3, 1), removedFrom(kv.TierHost, 4))
	events := decode(t, s.payloads[0])
	if len(events) != 2 || !slices.Equal(events[0].BlockHashes, []kv.EngineHash{1}) || !slices.Equal(events[1].BlockHashes, []kv.EngineHash{1}) {
		t.Errorf("said %+v", events)
	}
	if s.announced != 0 || s.counters.unknownTokens.Load() != 1 || s.counters.orphans.Load() != 2 || s.counters.ignoredRemoves.Load() != 2 {
		t.Errorf("counted %d unknown, %d orphans, %d removals", s.counters.unknownTokens.Load(), s.counters.orphans.Load(), s.counters.ignoredRemoves.Load())
	}
	s.say(removedFrom(kv.TierDevice, 2))
	if len(s.states) != 0 || s.announced != 0 {
		t.Errorf("%d blocks are left, %d of them known", len(s.states), s.announced)
	}
}

func TestBlockThatIsNoWholeBlockIsLeftOut(t *testing.T) {
	s := newRecordedEncoder(knownTokens{1: block(1, 1, 1), 2: {Tokens: []uint32{1, 2}, BlockSize: 2}})
	s.say(storedIn(kv.TierDevice, 0, 1), storedIn(kv.TierDevice, 0, 2))
	if len(s.payloads) != 0 || s.counters.unknownTokens.Load() != 2 {
		t.Errorf("%d batches, %d left out", len(s.payloads), s.counters.unknownTokens.Load())
	}
}

func TestOverlappingPairsOfARunAreSaidOnce(t *testing.T) {
	pairs := func(tokens ...uint32) engineevent.Event {
		return engineevent.Event{Tokens: tokens, BlockSize: 4, Eagle: true}
	}
	s := newRecordedEncoder(knownTokens{1: pairs(1, 2, 3, 4, 5), 2: pairs(5, 6, 7, 8, 9)})
	s.say(storedIn(kv.TierDevice, 0, 1, 2))
	e := decode(t, s.payloads[0])[0]
	if !e.Eagle || !slices.Equal(e.Tokens, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("said %+v", e)
	}
}

func TestRunsEndWhereAdapterOrSaltOrParentChange(t *testing.T) {
	s := newRecordedEncoder(knownTokens{
		1: block(1, 1, 1, 1), 2: named(block(2, 2, 2, 2), "a", ""), 3: named(block(3, 3, 3, 3), "a", "s"), 4: named(block(4, 4, 4, 4), "a", "s"),
	})
	s.say(storedIn(kv.TierDevice, 0, 1, 2, 3), storedIn(kv.TierDevice, 2, 4))
	if events := decode(t, s.payloads[0]); len(events) != 4 {
		t.Errorf("%d events, want 4", len(events))
	}
}

func TestBatchesStayWithinTheirLimits(t *testing.T) {
	tokens := make(knownTokens)
	var events []kvevent.RouterEvent
	for i := range kv.SequenceHash(20000) {
		tokens[i+1] = block(1, 2, 3, uint32(i))
		if i < 1000 {
			events = append(events, storedIn(kv.TierDevice, 0, i+1))
		} else {
			events = append(events, storedIn(kv.TierDevice, i, i+1))
		}
	}
	s := newRecordedEncoder(tokens)
	s.say(events...)
	blocks := 0
	for _, p := range s.payloads {
		said := decode(t, p)
		inBatch := 0
		for i := range said {
			inBatch += len(said[i].BlockHashes)
		}
		if len(said) > kvevent.MaxEventsPerMessage || inBatch > kvevent.MaxBlocksPerMessage || len(p) > maxBatchBytes+1<<10 {
			t.Errorf("a batch has %d events, %d blocks, %d bytes", len(said), inBatch, len(p))
		}
		blocks += inBatch
	}
	if blocks != 20000 || len(s.payloads) > 20 {
		t.Errorf("%d blocks in %d batches", blocks, len(s.payloads))
	}
}

func TestEncoderAllocatesNothingPerBlock(t *testing.T) {
	tokens := make(knownTokens)
	var hashes []kv.SequenceHash
	for i := range kv.SequenceHash(512) {
		tokens[i+1] = block(1, 2, 3, uint32(i))
		hashes = append(hashes, i+1)
	}
	s := newRecordedEncoder(tokens)
	s.send = func(*engineevent.Batch) {}
	stored, removed := storedIn(kv.TierDevice, 0, hashes...), removedFrom(kv.TierDevice, hashes...)
	turn := func() {
		s.apply(&stored)
		s.apply(&removed)
		s.flush()
	}
	turn()
	if n := testing.AllocsPerRun(20, turn); n > 0 {
		t.Errorf("%v allocations per turn of 512 blocks", n)
	}
}
