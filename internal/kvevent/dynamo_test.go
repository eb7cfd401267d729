package kvevent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/recordedtest"
)

// dynamoSample has each kind of event once.
func dynamoSample() Envelope {
	worker := kv.WorkerOwner(kv.Worker{ID: 7, Rank: 2})
	return Envelope{
		PublisherID: 0x123456789abcd, Sequence: 0, PublishedAt: 1700000000500, Topic: Topic,
		Events: []RouterEvent{
			{
				Owner: worker, ID: 1, Kind: Stored,
				Blocks: []StoredBlock{{Hash: 0x1122334455667788, Local: 14643705804678351452}},
			},
			{Owner: worker, Tier: kv.TierHost, ID: 2, Kind: Removed, Removed: []kv.SequenceHash{0x1122334455667788}},
			{Owner: worker, ID: 3, Kind: Cleared},
		},
	}
}

// TestDynamoEnvelopeBytesAreFrozen holds the form of 1.6: a residency domain in
// every event, except in a cleared one that reaches everything.
func TestDynamoEnvelopeBytesAreFrozen(t *testing.T) {
	const (
		head = "85ac7075626c69736865725f6964cf000123456789abcda873657175656e636500ac7075626c69736865645f6174cf00" +
			"00018bcfe569f4a5746f706963a96b762d6576656e7473a77061796c6f6164"
		domain = "b07265736964656e63795f646f6d61696ea6776f726b6572"
		stored = "84a9776f726b65725f696407ac73746f726167655f74696572a6646576696365" + domain + "a56576656e7483a86576656e" +
			"745f696401a46461746181a673746f72656483ab706172656e745f68617368c0ae73746172745f706f736974696f6ec0a662" +
			"6c6f636b739183aa626c6f636b5f68617368cf1122334455667788ab746f6b656e735f68617368cfcb38e4d7fb2dca5cad6d6d" +
			"5f65787472615f696e666fc0a764705f72616e6b02"
		removed = "84a9776f726b65725f696407ac73746f726167655f74696572ab686f73745f70696e6e6564" + domain + "a56576656e7483" +
			"a86576656e745f696402a46461746181a772656d6f76656481ac626c6f636b5f68617368657391cf1122334455667788a764705f" +
			"72616e6b02"
		cleared = "a9776f726b65725f696407ac73746f726167655f74696572a6646576696365"
		tail    = "a56576656e7483a86576656e745f696403a464617461a7636c6561726564a764705f72616e6b02"
	)
	for _, tc := range []struct {
		name    string
		reach   ClearReach
		length  string
		cleared string
	}{
		{"everything", ClearAll, "c50183", "83" + cleared + tail},
		{"the worker's own", ClearWorker, "c5019b", "84" + cleared + domain + tail},
	} {
		e := dynamoSample()
		want := head + tc.length + "93" + stored + removed + tc.cleared
		if got := AppendDynamoEnvelope(nil, &e, tc.reach); string(got) != string(recordedtest.Unhex(t, want)) {
			t.Errorf("%s:\ngot  %x\nwant %s", tc.name, got, want)
		}
	}
}

func TestDynamoEnvelopesAreReadBack(t *testing.T) {
	want := dynamoSample()
	for _, reach := range []ClearReach{ClearAll, ClearWorker} {
		var d EnvelopeDecoder
		var got Envelope
		if err := d.Decode(AppendDynamoEnvelope([]byte{}, &want, reach), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, visible); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}
