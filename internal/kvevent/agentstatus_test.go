package kvevent

import (
	"bytes"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

var sampleStatus = AgentStatus{Agent: 0x1b2c3d4e5f609, Streams: []StreamStatus{
	{PublisherID: 0x1b2c3d4e5f607, Kind: kv.OwnerPool, Status: Status{LastEventID: 2, Digest: 0x1c5712dd8b1fd6fc, Blocks: 3, Health: HealthExact}},
	{PublisherID: 0x1b2c3d4e5f608, Status: Status{LastEventID: math.MaxUint64, Digest: 6, GroupDigest: 7, GroupBlocks: 1 << 40, Health: HealthDegraded}},
}}

func TestAgentStatusSurvivesEncoding(t *testing.T) {
	full := AgentStatus{Agent: 7, Streams: make([]StreamStatus, MaxAgentStreams)}
	for i := range full.Streams {
		full.Streams[i] = StreamStatus{PublisherID: 1<<53 - 1, Kind: kv.OwnerPool, Status: Status{math.MaxUint64, math.MaxUint64,
			math.MaxUint64, math.MaxUint64, math.MaxUint64, HealthGone}}
	}
	var got AgentStatus
	for _, want := range []AgentStatus{sampleStatus, full, {Agent: 1, Streams: []StreamStatus{}}} {
		b := AppendAgentStatus(nil, &want)
		if is, err := DecodeAgentStatus(b, &got); err != nil || !is {
			t.Fatalf("%v, %v", is, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if len(b) > 8<<10 {
			t.Errorf("%d bytes, want at most 8 KiB", len(b))
		}
		wantWhole(t, b, func(b []byte) (bool, error) { return DecodeAgentStatus(b, &got) })
	}
}

func TestAgentStatusKeysAreWhatIsDocumented(t *testing.T) {
	s := AgentStatus{Agent: 1, Streams: []StreamStatus{
		{PublisherID: 2, Kind: kv.OwnerPool, Status: Status{LastEventID: 3, Digest: 4, Blocks: 5, Health: HealthDegraded}},
		{PublisherID: 6, Status: Status{GroupDigest: 7, GroupBlocks: 8, Health: HealthExact}},
	}}
	want := wire(t, dict{"publisher_id", 1, "owner_kind", "pool", "owner_id", 0, "health", "gone",
		"streams", list{list{2, 1, 3, 4, 5, 1}, list{6, 0, 0, 0, 0, 0, 7, 8}}})
	if got := AppendAgentStatus(nil, &s); !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

// TestAnEarlierReaderTakesAnAgentStatusForAStrangersGoodbye: it has the keys that such a reader requires.
func TestAnEarlierReaderTakesAnAgentStatusForAStrangersGoodbye(t *testing.T) {
	got, err := DecodeAnnouncement(AppendAgentStatus(nil, &sampleStatus))
	if want := (Announcement{PublisherID: sampleStatus.Agent, Owner: kv.PoolOwner(0), Health: HealthGone}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestOtherMessagesAreNoAgentStatus(t *testing.T) {
	s := AgentStatus{Agent: 9, Streams: []StreamStatus{{PublisherID: 1}}}
	if is, err := DecodeAgentStatus(AppendAnnouncement(nil, &sampleAnnouncement), &s); is || err != nil || s.Agent != 0 || len(s.Streams) > 0 {
		t.Errorf("an announcement: %v, %v, %+v", is, err, s)
	}
	stream := func(more ...any) dict { return dict{"publisher_id", 1, "streams", list{list(more)}} }
	later := stream(2, 1, 3, 4, 5, 1, 6, 7, "later", dict{"a", 1})
	if is, err := DecodeAgentStatus(wire(t, append(later, "future", list{1})), &s); !is || err != nil || s.Streams[0].GroupBlocks != 7 {
		t.Errorf("a status of a later version: %v, %v, %+v", is, err, s)
	}
	many := make(list, MaxAgentStreams+1)
	for i := range many {
		many[i] = list{1, 0, 0, 0, 0, 0}
	}
	for name, d := range map[string]any{
		"no agent": later[2:], "few elements": stream(1, 0, 0, 0, 0), "unknown kind": stream(1, 2, 0, 0, 0, 0),
		"unknown health": stream(1, 0, 0, 0, 0, 3), "negative digest": stream(1, 0, 0, -1, 0, 0), "no array": dict{"publisher_id", 1, "streams", list{1}},
		"too many": dict{"publisher_id", 1, "streams", many}, "too many in two": dict{"publisher_id", 1, "streams", many[1:], "streams", many[:1]},
	} {
		if is, err := DecodeAgentStatus(wire(t, d), &s); err == nil || len(s.Streams) > 0 {
			t.Errorf("%s: %v, %v, %+v", name, is, err, s)
		}
	}
}
