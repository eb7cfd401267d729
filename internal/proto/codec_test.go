package proto

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestUnknownKeysAreSkipped(t *testing.T) {
	b := msgp.AppendMapHeader(nil, 3)
	b = msgp.AppendString(b, "from_a_later_minor")
	b = msgp.AppendMapHeader(b, 1)
	b = msgp.AppendString(b, "x")
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendInt(b, 1)
	b = msgp.AppendString(b, "req")
	b = msgp.AppendUint64(b, 77)
	b = msgp.AppendString(b, "gen")
	b = msgp.AppendUint32(b, 3)
	var m Close
	if err := Decode(TypeClose, b, &m); err != nil {
		t.Fatal(err)
	}
	if m != (Close{Request: 77, Generation: 3}) {
		t.Errorf("got %+v", m)
	}
}

func TestHostileBodiesAreMalformed(t *testing.T) {
	claimed := func(prefix ...byte) []byte {
		b := msgp.AppendMapHeader(nil, 1)
		b = msgp.AppendString(b, "tokens")
		return append(b, prefix...)
	}
	valid, err := (&Open{Request: 1}).MarshalMsg(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{
		"empty":                             {},
		"not a map":                         msgp.AppendInt(nil, 5),
		"map of 2^32-1 pairs":               {0xdf, 0xff, 0xff, 0xff, 0xff},
		"bin of 4 GiB":                      claimed(0xc6, 0xff, 0xff, 0xff, 0xff),
		"string where bin belongs":          claimed(0xa1, 'x'),
		"array of 2^32-1 in an unknown key": append(msgp.AppendString(msgp.AppendMapHeader(nil, 1), "u"), 0xdd, 0xff, 0xff, 0xff, 0xff),
		"nested 20000 deep":                 append(msgp.AppendString(msgp.AppendMapHeader(nil, 1), "u"), bytes.Repeat([]byte{0x91}, 20000)...),
		"bytes after the body":              append(bytes.Clone(valid), 0),
		"cut short":                         valid[:len(valid)-1],
	} {
		var m Open
		if err := Decode(TypeOpen, body, &m); !IsMalformed(err) {
			t.Errorf("%s: got error %v, want one that is malformed", name, err)
		}
	}
}

func TestClaimedSizesDoNotAllocate(t *testing.T) {
	body := append(msgp.AppendString(msgp.AppendMapHeader(nil, 1), "tokens"), 0xc6, 0x7f, 0xff, 0xff, 0xff)
	n := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var m Open
			_ = Decode(TypeOpen, body, &m)
		}
	}).AllocedBytesPerOp()
	if n > 4096 {
		t.Errorf("%d bytes allocated for a body of %d bytes that claims 2 GiB", n, len(body))
	}
}

func TestRangeErrorsNameFieldValueAndRange(t *testing.T) {
	hello := func(change func(*Hello)) *Hello {
		h := *samples()[0].m.(*Hello)
		change(&h)
		return &h
	}
	for _, c := range []struct {
		m    Message
		want string
	}{
		{hello(func(h *Hello) { h.Role = "boss" }), `role: "boss" is neither "scheduler" nor "worker"`},
		{hello(func(h *Hello) { h.WorkerID = 0 }), "worker_id: 0 is not a worker, want 1 or more"},
		{hello(func(h *Hello) { h.Session = 4 }), "session: 4, want 0 from a scheduler"},
		{hello(func(h *Hello) { h.Namespace.Model = "m\x1b[31m" }), "namespace model: \"m\\x1b[31m\" has control characters"},
		{hello(func(h *Hello) { h.Namespace = kv.Namespace{} }), "namespace model: must not be empty"},
		{hello(func(h *Hello) { h.Role, h.Namespace = "worker", kv.Namespace{DType: "int8"} }), "namespace model: must not be empty"},
		{hello(func(h *Hello) { h.Role, h.Namespace, h.Engine = "worker", kv.Namespace{}, strings.Repeat("e", 1025) }), "engine: 1025 bytes, want at most 1024"},
		{hello(func(h *Hello) { h.Namespace.BlockSize = 5000 }), "namespace page_size: 5000 is not in 1..4096"},
		{hello(func(h *Hello) { h.Namespace.Weights = strings.Repeat("w", 2000) }), "namespace weights: 2000 bytes, want at most 1024"},
		{hello(func(h *Hello) { h.EventsEndpoint = strings.Repeat("e", 300) }), "events_endpoint: 300 bytes, want at most 256"},
		{hello(func(h *Hello) { h.EventsEndpoint = "5557" }), `events_endpoint: "5557" is neither tcp://HOST:PORT with a port of 1..65535 nor ipc://PATH`},
		{hello(func(h *Hello) { h.EventsEndpoint = "inproc://events" }), `events_endpoint: "inproc://events" is neither tcp://HOST:PORT with a port of 1..65535 nor ipc://PATH`},
		{hello(func(h *Hello) { h.EventsEndpoint = "ipc://" }), `events_endpoint: "ipc://" is neither tcp://HOST:PORT with a port of 1..65535 nor ipc://PATH`},
		{hello(func(h *Hello) { h.ReplayEndpoint = "tcp://*:65536" }), `replay_endpoint: "tcp://*:65536" is neither tcp://HOST:PORT with a port of 1..65535 nor ipc://PATH`},
		{hello(func(h *Hello) { h.ConsolidatedEndpoint = "tcp://*:0" }), `consolidated_endpoint: "tcp://*:0" is no tcp://HOST:PORT with a port of 1..65535`},
		{hello(func(h *Hello) { h.ConsolidatedEndpoint = "127.0.0.1:57001" }), `consolidated_endpoint: "127.0.0.1:57001" is no tcp://HOST:PORT with a port of 1..65535`},
		{hello(func(h *Hello) { h.ConsolidatedEndpoint = "tcp://" + strings.Repeat("h", 300) + ":1" }), "consolidated_endpoint: 308 bytes, want at most 256"},
		{hello(func(h *Hello) { h.ConsolidatorMode = "merge" }), `consolidator_mode: "merge" is none of "tiered", "dedup", "passthrough"`},
		{&Stats{DeviceBlocksTotal: 3, DeviceBlocksUsed: 4}, "device_blocks_used: 4 is not in 0..3"},
		{&ListCached{}, "list: 0 is not in 1..18446744073709551615"},
		{&Cached{List: 1, Hashes: make([]byte, 9)}, "hashes: 9 bytes is not a multiple of 8"},
		{&Cached{List: 1, Hashes: make([]byte, 8*4001)}, "hashes: 4001 items, want 0..4000"},
		{&Cached{List: 1, Unavailable: true}, "unavailable: true with final false and 0 bytes of hashes, want final and none"},
		{&Lookup{Count: 1025}, "count: 1025 is not in 1..1024"},
		{&Lookup{First: MaxTokens, Count: 1}, "first: 4194304 is not in 0..4194303"},
		{&Lookup{Count: 1, WaitMillis: 60001}, "wait_ms: 60001 is not in 0..60000"},
		{&Store{}, "count: 0 is not in 1..1024"},
		{&Lookup{Count: 1, Group: 64}, "group: 64 is not in 0..63"},
		{&LookupHit{Group: 64}, "group: 64 is not in 0..63"},
		{&Claim{Count: 1, Blocks: make([]byte, 4), Group: 64}, "group: 64 is not in 0..63"},
		{&Load{Slots: make([]byte, 16), Blocks: make([]byte, 4), Group: 64}, "group: 64 is not in 0..63"},
		{&Store{Count: 1, Group: 64}, "group: 64 is not in 0..63"},
		{&Grant{Group: 64}, "group: 64 is not in 0..63"},
		{&Range{Count: 1, Group: 64}, "group: 64 is not in 0..63"},
		{&Fit{Tokens: MaxTokens + 1}, "tokens: 4194305 is not in 0..4194304"},
		{&Fit{Align: 1<<20 + 1}, "align: 1048577 is not in 0..1048576"},
		{&Fitted{Tokens: MaxTokens + 1}, "tokens: 4194305 is not in 0..4194304"},
		{hello(func(h *Hello) { h.Namespace.Groups = []kv.Group{{Kind: "full"}} }), "namespace groups[0] block_size: 0 is not in 1..1048576"},
		{&Claim{Count: 2, Blocks: make([]byte, 4)}, "blocks: 1 items, want 2..2"},
		{&Claim{Count: 2, Blocks: make([]byte, 7)}, "blocks: 7 bytes is not a multiple of 4"},
		{&Append{Offset: MaxTokens + 1, Tokens: make([]byte, 4)}, "offset: 4194305 is not in 0..4194304"},
		{&Append{}, "tokens: 0 items, want 1..7168"},
		{&Open{Salt: strings.Repeat("s", 1025)}, "salt: 1025 bytes, want at most 1024"},
		{&SlotList{}, "slots: 0 items, want 1..1024"},
		{&Register{}, "device_blocks: 0 is not in 1..2147483648"},
		{&ExtentReady{Slots: 16, SlotBytes: 4096, FileBytes: 65536, DataOffset: 4096}, "file_bytes: 65536, but 16 slots of 4096 bytes from 4096 on need 69632"},
		{&ExtentReady{Slots: 600, SlotBytes: 8, FileBytes: 65536, DataOffset: 4096}, "data_offset: 4096 is not in 4800..65536"},
		{&LookupHit{Ready: 1}, "sources: 0 bytes, want one for each of the 1 ready blocks"},
		{&LookupHit{Ready: 1, Sources: []byte{0}, Slots: make([]byte, 16)}, "sources: 0 is not in 1..2"},
		{&LookupHit{Ready: 1, Sources: []byte{3}, Slots: make([]byte, 16)}, "sources: 3 is not in 1..2"},
		{&LookupHit{Ready: 1, Sources: []byte{1}}, "slots: 0 items, want 1..1"},
		{&Claimed{}, "workers: 0 is not in 1..1024"},
		{&Register{DeviceBlocks: 1, BlockBytes: 1 << 20, Offset: 255<<20 + 1}, "offset: 267386881 is not in 0..267386880"},
		{&Welcome{}, "namespace_id: 0 bytes, want 16"},
		{&Welcome{NamespaceID: make([]byte, 16), BlockBytes: 1, SlotBytes: 1, Warning: strings.Repeat("w", 1025)}, "warning: 1025 bytes, want at most 1024"},
		{&Grant{Grants: make([]byte, 23)}, "grants: 23 bytes is not a multiple of 24"},
		{&Resume{Pinned: make([]byte, 17)}, "pinned: 17 bytes is not a multiple of 16"},
		{&Resume{Granted: make([]byte, 16*1021), Pinned: make([]byte, 16*1020)}, "granted and pinned: 2041 items, want at most 2040 together"},
		{&Load{Slots: make([]byte, 32), Blocks: make([]byte, 4)}, "blocks: 1 items, want 2..2"},
		{&Evicted{Tier: 0, Hashes: make([]byte, 8)}, "tier: 0 is not in 1..2"},
		{&Evicted{Tier: 2}, "hashes: 0 items, want 1..2048"},
		{&Evicted{Tier: 1, Hashes: make([]byte, 8*2049)}, "hashes: 2049 items, want 1..2048"},
		{&Drain{DeadlineMillis: 3_600_001}, "deadline_ms: 3600001 is not in 0..3600000"},
		{&Bye{Reason: strings.Repeat("r", 1025)}, "reason: 1025 bytes, want at most 1024"},
	} {
		err := c.m.Validate()
		if err == nil || err.Error() != c.want {
			t.Errorf("%T: got error %v, want %s", c.m, err, c.want)
		}
	}
}

// largestHello has every text at its limit and as many groups as a namespace may have.
func largestHello(name string) *Hello {
	text, endpoint := strings.Repeat("t", MaxTextLen), "tcp://"+strings.Repeat("h", MaxEndpointLen-8)+":1"
	ns := testNamespace()
	ns.Model, ns.Weights, ns.DType, ns.Layout, ns.KVFormat = name, name, name, name, name
	ns.Groups = slices.Repeat([]kv.Group{{Kind: "chunked", Window: 1 << 24, BlockSize: 1 << 20, BlockBytes: 256 << 20, Layers: 4096}}, 64)
	ns.Groups[0] = kv.Group{Kind: "full", BlockSize: 1 << 20, BlockBytes: 256 << 20, Layers: 4096}
	return &Hello{
		Role: "scheduler", WorkerID: 1 << 63, Namespace: ns, Engine: text, Connector: text, EventsEndpoint: endpoint, ReplayEndpoint: endpoint,
		EventsTopic: endpoint, ConsolidatedEndpoint: endpoint, ServingEndpoint: endpoint, ConsolidatorMode: ConsolidatorPassthrough,
	}
}

func TestLargestBodiesFitAFrame(t *testing.T) {
	name := strings.Repeat("n", MaxNameLen)
	slots := make([]byte, MaxBlocksPerFrame*packedSlotSize)
	for _, s := range []sample{
		{TypeOpen, 0, &Open{Request: 1 << 63, Generation: 1 << 31, LoRA: name, LoRAName: name, Salt: name, Tokens: make([]byte, MaxTokensPerFrame*packedTokenSize)}},
		{TypeGrant, 1, &Grant{Request: 1 << 63, Grants: make([]byte, MaxBlocksPerFrame*packedGrantSize)}},
		{TypeLoad, 0, &Load{Job: 1 << 63, Slots: slots, Blocks: make([]byte, MaxBlocksPerFrame*packedTokenSize), Group: 63}},
		{TypeHello, 1, largestHello(name)},
		{TypeLookupHit, 1, &LookupHit{Request: 1 << 63, Ready: MaxBlocksPerFrame, Sources: bytes.Repeat([]byte{1}, MaxBlocksPerFrame), Slots: slots}},
		{TypeCommit, 1, &SlotList{Request: 1 << 63, Slots: slots}},
		{TypeEvicted, 0, &Evicted{Tier: 2, Hashes: make([]byte, MaxHashesPerFrame*packedHashSize), Lost: 1 << 63}},
		{TypeCached, 0, &Cached{List: 1 << 63, Hashes: make([]byte, MaxListedPerFrame*packedHashSize), Final: true}},
		{TypeResume, 1, &Resume{Session: 1 << 63, AgentNonce: 1 << 63, Pinned: make([]byte, MaxResumeSlots*packedSlotSize)}},
	} {
		if err := s.m.Validate(); err != nil {
			t.Errorf("%s: %v", s.t, err)
		}
		if _, err := AppendFrame(nil, s.t, s.corr, s.m); err != nil {
			t.Errorf("%s: %v", s.t, err)
		}
	}
	if _, err := AppendFrame(nil, TypeResume, 1, &Resume{Granted: make([]byte, MaxFrame)}); err == nil {
		t.Error("a body larger than a frame was encoded")
	}
}

// FuzzDecode feeds every decoder whatever a client may send. What it accepts
// must be in range and survive a round trip.
func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		b, err := AppendFrame(nil, s.t, s.corr, s.m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(AppendHeader(nil, Header{Type: 999}))
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, body, err := ParseFrame(frame)
		if err != nil {
			// The mutator rarely keeps the length field true: go on with the body.
			if len(frame) < HeaderSize {
				return
			}
			h.Type, body = Type(binary.LittleEndian.Uint16(frame[4:])), frame[HeaderSize:]
		}
		m, _ := NewMessage(h.Type)
		if m == nil || Decode(h.Type, body, m) != nil {
			return
		}
		again, err := m.MarshalMsg(nil)
		if err != nil {
			t.Fatalf("%s: decoded, but not encoded again: %v", h.Type, err)
		}
		n, _ := NewMessage(h.Type)
		if err := Decode(h.Type, again, n); err != nil {
			t.Fatalf("%s: encoded, but not decoded again: %v", h.Type, err)
		}
		if d := cmp.Diff(m, n); d != "" {
			t.Fatalf("%s: changed on the way:\n%s", h.Type, d)
		}
	})
}

func TestEndpointsOfEnginesMayHaveEveryFormThatZMQTakesBetweenProcesses(t *testing.T) {
	for _, endpoint := range []string{"", "tcp://*:5557", "tcp://127.0.0.1:1", "tcp://[::1]:65535", "tcp://engine-0.svc:5557", "ipc:///tmp/events"} {
		if err := checkEndpoint("events_endpoint", endpoint); err != nil {
			t.Error(err)
		}
	}
}
