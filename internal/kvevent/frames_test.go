package kvevent

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

var sampleAnnouncement = Announcement{
	PublisherID: 1<<53 - 1, Owner: kv.WorkerOwner(kv.Worker{ID: math.MaxUint64, Rank: 3}), Pool: 1 << 63,
	Namespace: kv.NamespaceID{1, 2, 0xff}, Model: "tiny", BlockSize: 32, LastEventID: 8, Digest: math.MaxUint64, Blocks: 9,
	Health: HealthDegraded,
}

func TestAnnouncementSurvivesEncoding(t *testing.T) {
	pool := sampleAnnouncement
	pool.Owner, pool.Pool, pool.Health = kv.PoolOwner(4), 0, HealthGone
	hybrid := sampleAnnouncement
	hybrid.GroupDigest, hybrid.GroupBlocks, hybrid.Card.Groups = 1<<63, 70000, someGroups
	for _, want := range []Announcement{sampleAnnouncement, pool, hybrid} {
		got, err := DecodeAnnouncement(AppendAnnouncement(nil, &want))
		if err != nil || got != want {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
	}
}

func TestAnnouncementKeysAreWhatIsDocumented(t *testing.T) {
	a := Announcement{PublisherID: 1, Owner: kv.PoolOwner(2), Namespace: kv.NamespaceID{3}, Model: "m", BlockSize: 4, LastEventID: 5, Digest: 6, Blocks: 7, Health: HealthExact}
	want := wire(t, dict{
		"publisher_id", 1, "owner_kind", "pool", "owner_id", 2, "dp_rank", 0, "pool", 0, "namespace", a.Namespace[:], "model", "m",
		"block_size", 4, "last_event_id", 5, "digest", 6, "blocks", 7, "health", "exact",
	})
	if got := AppendAnnouncement(nil, &a); !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

func TestDamagedAnnouncementIsAnError(t *testing.T) {
	least := dict{"publisher_id", 1, "owner_kind", "worker", "owner_id", 2, "health", "exact"}
	with := func(more ...any) dict { return append(least[:len(least):len(least)], more...) }
	if _, err := DecodeAnnouncement(wire(t, with("future", list{1}))); err != nil {
		t.Errorf("the least announcement: %v", err)
	}
	for name, d := range map[string]any{
		"no publisher": least[2:], "no health": least[:6], "unknown health": with("health", "fine"),
		"unknown owner": with("owner_kind", "node"), "short namespace": with("namespace", []byte{1}),
		"text namespace": with("namespace", "0123456789abcdef"), "rank too large": with("dp_rank", 1<<32),
		"negative digest": with("digest", -1), "model no text": with("model", 1), "an array": list{1},
	} {
		if a, err := DecodeAnnouncement(wire(t, d)); err == nil || a != (Announcement{}) {
			t.Errorf("%s: got %+v, %v", name, a, err)
		}
	}
	whole := AppendAnnouncement(nil, &sampleAnnouncement)
	wantWhole(t, whole, DecodeAnnouncement)
	if _, err := DecodeAnnouncement(append(whole, 0)); err == nil {
		t.Error("no error for a trailing byte")
	}
}

func TestQueryRequestSurvivesEncoding(t *testing.T) {
	for _, want := range []QueryRequest{
		{}, {StartID: 1, HasStart: true}, {HasStart: true, EndID: math.MaxUint64, HasEnd: true}, {EndID: 7, HasEnd: true},
		{MaxChunks: 8}, {MaxChunks: 4, DumpID: 1 << 60, FirstChunk: math.MaxUint32},
	} {
		b := AppendQueryRequest(nil, &want)
		if got, err := DecodeQueryRequest(b); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		wantWhole(t, b, DecodeQueryRequest)
	}
	if got, err := DecodeQueryRequest(wire(t, dict{"x", 1})); err != nil || got != (QueryRequest{}) {
		t.Errorf("a request without the keys: %+v, %v", got, err)
	}
	for _, bad := range []any{1, dict{"start_event_id", "a"}, dict{"end_event_id", -1}, dict{"max_chunks", nil}, dict{"dump_id", -1}, dict{"first_chunk", 1 << 32}} {
		if _, err := DecodeQueryRequest(wire(t, bad)); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
}

func TestQueryReplySurvivesEncodingAndOwnsItsMemory(t *testing.T) {
	for _, kind := range []QueryKind{QueryEvents, QueryTreeDump, QueryTooNew, QueryInvalidRange, QueryError} {
		want := QueryReply{
			PublisherID: 5, Kind: kind, LastEventID: math.MaxUint64, Chunk: 3, Final: kind != QueryEvents, Message: "no such range",
			Events: sample().Events,
		}
		if kind == QueryTreeDump {
			want.DumpID = 12
		}
		b := AppendQueryReply(nil, &want)
		got, err := DecodeQueryReply(b)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		clear(b)
		if diff := cmp.Diff(want, got, visible); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", kind, diff)
		}
	}
}

func TestAQueryReplyWithAHoleIsAnError(t *testing.T) {
	reply := func(events ...any) dict {
		return dict{"publisher_id", 1, "kind", "events", "chunk", 0, "final", true, "new", nil, "events", events}
	}
	if r, err := DecodeQueryReply(wire(t, reply(clearedBy(1)))); err != nil || len(r.Events) != 1 {
		t.Errorf("whole reply: %+v, %v", r, err)
	}
	for name, d := range map[string]any{
		"bad event": reply(clearedBy(1), dict{"worker_id", 7}), "foreign event": reply(clearedBy(1, "residency_domain", "moon")),
		"unknown kind": append(reply(), "kind", "gift"), "no kind": reply()[:2], "final is a number": append(reply(), "final", 1),
		"events no array": append(reply(), "events", dict{}), "an array": list{},
	} {
		if r, err := DecodeQueryReply(wire(t, d)); err == nil || len(r.Events) != 0 {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
	}
	whole := AppendQueryReply(nil, &QueryReply{Kind: QueryEvents, Events: sample().Events})
	wantWhole(t, whole, DecodeQueryReply)
}

func TestNodeClaimsSurviveEncoding(t *testing.T) {
	want := NodeClaim{Node: "node a", Host: "h", PID: 7}
	b := AppendNodeClaim(nil, &want)
	if got, err := DecodeNodeClaim(b); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	wantWhole(t, b, DecodeNodeClaim)
	if _, err := DecodeNodeClaim(wire(t, dict{"host", strings.Repeat("h", 257)})); err == nil {
		t.Error("a host of 257 bytes was taken")
	}
}
