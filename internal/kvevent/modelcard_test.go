package kvevent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

var sampleCard = ModelCard{
	Endpoint: "http://node-7:8000", Ranks: 4, DeviceBlocks: 1 << 20, HostBytes: 1 << 40, DiskBytes: 1 << 50,
	MaxBatchedTokens: 8192, Taints: "a100,zone=1", Incarnation: 1<<64 - 1, Eagle: true, Silent: true, Source: "file",
	Groups: someGroups,
}

// someGroups are those of an engine whose first group is a window.
var someGroups, _ = NewGroups(kvgroup.Groups{
	{Kind: kvgroup.Sliding, Window: 1024, BlockSize: 32},
	{Kind: kvgroup.Full, BlockSize: 32},
	{Kind: kvgroup.State, BlockSize: 64, Eagle: true},
})

func TestThePrimaryGroupIsGroupZero(t *testing.T) {
	engine := kvgroup.Groups{
		{Kind: kvgroup.Sliding, Window: 1024, BlockSize: 32}, {Kind: kvgroup.Full, BlockSize: 32}, {Kind: kvgroup.Full, BlockSize: 64},
	}
	groups, numbers := NewGroups(engine)
	if want := []uint32{1, 0, 2}; !slices.Equal(numbers, want) {
		t.Errorf("numbers %v, want %v", numbers, want)
	}
	for i, g := range engine {
		if got := groups.List()[numbers[i]]; got != g {
			t.Errorf("group %d is %+v, want %+v", numbers[i], got, g)
		}
	}
	if groups, numbers := NewGroups(nil); groups != "" || numbers != nil || groups.List() != nil {
		t.Errorf("no groups: %q, %v", groups, numbers)
	}
}

// TestCardSurvivesEncoding: what is set comes back, and what is not set takes no key,
// so that an announcement without a card is what it was before there were cards.
func TestCardSurvivesEncoding(t *testing.T) {
	for _, card := range []ModelCard{{}, sampleCard, {Ranks: 1}, {Silent: true}, {Source: "http"}, {Taints: "x"}, {MaxBatchedTokens: 1}, {Incarnation: 1}, {Eagle: true}, {Groups: someGroups}} {
		want := sampleAnnouncement
		want.Card = card
		b := AppendAnnouncement(nil, &want)
		got, err := DecodeAnnouncement(b)
		if err != nil || got != want {
			t.Errorf("%+v: got %+v, %v", card, got.Card, err)
		}
		if n := int(b[0]&0x0f) - 12; b[0]&0xf0 == 0x80 && n != int(card.keys()) {
			t.Errorf("%+v: %d keys more than without, want %d", card, n, card.keys())
		}
	}
}

func TestCardFieldsAreChecked(t *testing.T) {
	base := dict{"publisher_id", 1, "owner_kind", "worker", "owner_id", 2, "health", "exact"}
	for _, c := range []struct {
		key   string
		value any
	}{
		{"endpoint", 7}, {"endpoint", strings.Repeat("x", MaxEndpoint+1)}, {"ranks", -1}, {"ranks", 1 << 32},
		{"silent", "yes"}, {"eagle", 1}, {"incarnation", -1}, {"source", strings.Repeat("x", MaxEndpoint+1)}, {"host_bytes", "1"},
		{"endpoint", "http://a\r\nb"}, {"source", "\u009b1m"}, {"model", strings.Repeat("x", MaxModel+1)}, {"model", "m\x1b[2J"},
		{"max_num_batched_tokens", -1}, {"taints", "a"}, {"taints", list{"a", 1}}, {"taints", list{"a", ""}}, {"taints", list{"a b"}},
		{"taints", list{"a,b"}}, {"taints", list{"ä"}}, {"taints", list{strings.Repeat("x", MaxTaint+1)}}, {"taints", many(MaxTaints + 1)},
		{"groups", "full"}, {"groups", list{dict{"kind", "half", "block_size", 16}}}, {"groups", list{dict{"kind", "full", "block_size", 0}}},
		{"groups", list{dict{"kind", "state", "block_size", 16}}}, {"groups", list{dict{"kind", "sliding", "window", 8, "block_size", 16}, dict{"kind", "full", "block_size", 16}}},
	} {
		if a, err := DecodeAnnouncement(wire(t, append(base[:len(base):len(base)], c.key, c.value))); err == nil || !strings.Contains(err.Error(), c.key) {
			t.Errorf("%s of a wrong kind, size or text: %+v, %v; want an error that names it", c.key, a, err)
		}
	}
}

// many is an array of so many labels.
func many(n int) list {
	l := make(list, n)
	for i := range l {
		l[i] = fmt.Sprintf("t%d", i)
	}
	return l
}

// TestTaintsAreEqualWhateverTheirOrder: so that an announcement that says the same
// in another order is no change; as many as there may be survive the wire.
func TestTaintsAreEqualWhateverTheirOrder(t *testing.T) {
	a, err := NewTaints([]string{"zone=1", "a100", "zone=1"})
	if err != nil || a != "a100,zone=1" || len(a.List()) != 2 {
		t.Errorf("%q, %v", a, err)
	}
	if none, err := NewTaints(nil); err != nil || none != "" || none.List() != nil {
		t.Errorf("none: %q, %v", none, err)
	}
	base := dict{"publisher_id", 1, "owner_kind", "worker", "owner_id", 2, "health", "exact"}
	got, err := DecodeAnnouncement(wire(t, append(base[:len(base):len(base)], "taints", list{"zone=1", "a100"})))
	if err != nil || got.Card.Taints != a {
		t.Errorf("decoded %q, %v", got.Card.Taints, err)
	}
	got, err = DecodeAnnouncement(wire(t, append(base[:len(base):len(base)], "taints", many(MaxTaints))))
	if err != nil || len(got.Card.Taints.List()) != MaxTaints {
		t.Errorf("%d labels, %v", len(got.Card.Taints.List()), err)
	}
}

func TestLoadReportSurvivesEncoding(t *testing.T) {
	for _, want := range []LoadReport{
		{PublisherID: 1<<53 - 1, Owner: kv.WorkerOwner(kv.Worker{ID: 7, Rank: 3}), Worker: WorkerLoad{1, 2, 3, 4, 5, 6}},
		{PublisherID: 5, Owner: kv.PoolOwner(1 << 52), Pool: PoolLoad{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
		{PublisherID: 5, Owner: kv.PoolOwner(9)},
	} {
		b := AppendLoadReport(nil, &want)
		got, err := DecodeLoadReport(b)
		if err != nil || got != want {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
		n := 0
		for key := range want.Numbers() {
			if n++; key == "" {
				t.Error("a number without a key")
			}
		}
		if n != len(want.fields()) {
			t.Errorf("%d numbers, want %d", n, len(want.fields()))
		}
		wantWhole(t, b, DecodeLoadReport)
	}
}

func TestLoadReportRules(t *testing.T) {
	whole := dict{"publisher_id", 1, "owner_kind", "worker", "owner_id", 2, "running_requests", 3,
		"host_bytes_used", 9, "later", list{1, 2}}
	got, err := DecodeLoadReport(wire(t, whole))
	if err != nil || got.Worker.Running != 3 || got.Pool != (PoolLoad{}) {
		t.Errorf("unknown keys and those of another kind of owner: %+v, %v", got, err)
	}
	for _, at := range []int{0, 2, 4} {
		if _, err := DecodeLoadReport(wire(t, append(append(dict{}, whole[:at]...), whole[at+2:]...))); err == nil {
			t.Errorf("no error without %v", whole[at])
		}
	}
	if _, err := DecodeLoadReport(wire(t, append(whole[:6:6], "waiting_requests", "many"))); err == nil || !strings.Contains(err.Error(), "waiting_requests") {
		t.Errorf("error %v, want one that names the key", err)
	}
	if got, want := LoadSubject("c", 0xab), "blockyard.c.load.00000000000000ab"; got != want || AllLoadSubject("c") != "blockyard.c.load.*" {
		t.Errorf("subject %s, want %s", got, want)
	}
}
