package zmqsink

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// newHybridEncoder is an encoder of a worker with a window of 8 tokens beside its full attention.
func newHybridEncoder(tokens Tokens) *recordedEncoder {
	s := newRecordedEncoder(tokens)
	groups, _ := kvevent.NewGroups(kvgroup.Groups{
		{Kind: kvgroup.Full, BlockSize: 4}, {Kind: kvgroup.Sliding, Window: 8, BlockSize: 4},
	})
	s.groups = newGroupEncoder(groups)
	return s
}

// inWindow makes an event one of the window.
func inWindow(e kvevent.RouterEvent) kvevent.RouterEvent {
	e.Group = 1
	return e
}

// TestGroupsAreByteForByteWhatVLLMWouldSend: the bytes are those that msgspec makes of vLLM's
// dictionaries. A block of the window follows the primary group's block of the same hash, also when
// it was stored before.
func TestGroupsAreByteForByteWhatVLLMWouldSend(t *testing.T) {
	s := newHybridEncoder(knownTokens{hash1: block(1, 2, 3, 4), hash2: block(5, 6, 7, 8)})
	s.say(
		inWindow(storedIn(kv.TierDevice, 0, hash1, hash2)), inWindow(storedIn(kv.TierDevice, 0, hash2)),
		storedIn(kv.TierDevice, 0, hash1, hash2),
		inWindow(removedFrom(kv.TierDevice, hash2, hash3)), removedFrom(kv.TierDevice, hash2),
	)
	want, err := hex.DecodeString(strings.Join(strings.Fields(`
		93cb41d954fc40200000968aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf112233445566
		7788b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c
		6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a967726f75705f69647800b26b765f63616368655f
		737065635f6b696e64ae66756c6c5f617474656e74696f6e8ba474797065ab426c6f636b53746f726564ac626c6f636b5f68
		617368657391cf1122334455667788b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa
		626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a967726f75705f69
		647801b26b765f63616368655f737065635f6b696e64ae736c6964696e675f77696e646f77bc6b765f63616368655f737065
		635f736c6964696e675f77696e646f77088aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf
		99aabbccddeeff00b1706172656e745f626c6f636b5f68617368cf1122334455667788a9746f6b656e5f6964739405060708
		aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a967726f75705f
		69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e8ba474797065ab426c6f636b
		53746f726564ac626c6f636b5f68617368657391cf99aabbccddeeff00b1706172656e745f626c6f636b5f68617368cf1122
		334455667788a9746f6b656e5f6964739405060708aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3
		475055a96c6f72615f6e616d65c0a967726f75705f69647801b26b765f63616368655f737065635f6b696e64ae736c696469
		6e675f77696e646f77bc6b765f63616368655f737065635f736c6964696e675f77696e646f770884a474797065ac426c6f63
		6b52656d6f766564ac626c6f636b5f68617368657391cf99aabbccddeeff00a66d656469756da3475055a967726f75705f69
		64780184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf99aabbccddeeff00a66d656469
		756da3475055a967726f75705f6964780003`), ""))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.payloads) != 1 || string(s.payloads[0]) != string(want) {
		t.Errorf("got  %x\nwant %x", s.payloads, want)
	}
	if n := s.counters.ignoredRemoves.Load(); n != 1 {
		t.Errorf("%d removals of blocks that were not announced, want 1", n)
	}
}

// TestAWindowWithoutThePrimaryBlockIsNotAnnounced: subscribers place a block of a group by the
// primary group's block.
func TestAWindowWithoutThePrimaryBlockIsNotAnnounced(t *testing.T) {
	s := newHybridEncoder(knownTokens{hash1: block(1, 2, 3, 4)})
	other := inWindow(storedIn(kv.TierDevice, 0, hash1))
	other.Group = 2 // the worker has no such group
	s.say(inWindow(storedIn(kv.TierHost, 0, hash1)), inWindow(removedFrom(kv.TierHost, hash1)), other,
		inWindow(storedIn(kv.TierHost, 0, hash2)))
	s.say(storedIn(kv.TierDevice, 0, hash1), removedFrom(kv.TierDevice, hash1), inWindow(storedIn(kv.TierHost, 0, hash1)))
	for _, payload := range s.payloads {
		if strings.Contains(string(payload), "sliding_window") {
			t.Errorf("the window is announced: %q", payload)
		}
	}
	s.say(kvevent.RouterEvent{Kind: kvevent.Cleared})
	if n := len(s.groups.states) + len(s.groups.parents); n != 0 {
		t.Errorf("%d states of groups after a clear", n)
	}
}
