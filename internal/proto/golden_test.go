package proto

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/frames.txt anew")

const goldenFile = "testdata/frames.txt"

type sample struct {
	t    Type
	corr uint32
	m    Message
}

func testNamespace() kv.Namespace {
	return kv.Namespace{
		Model: "m", Weights: "w", DType: "bfloat16", Layers: 2, OuterDim: 2, BlockSize: 16, InnerDim: 32, DTypeBytes: 2,
		Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "f1",
	}
}

// samples has one frame of each type, in the order of their numbers.
func samples() []sample {
	ns := testNamespace()
	id := ns.ID()
	slots := AppendSlots(nil, []Slot{{Extent: 1, Index: 2, Generation: 3}, {Extent: 1, Index: 5, Generation: 8}})
	blocks := AppendTokens(nil, []uint32{7, 9})
	return []sample{
		{TypeHello, 1, &Hello{Major: 1, Role: "scheduler", Engine: "vllm 0.32.0", Incarnation: 0x1122334455667788, WorkerID: 42, DPRank: 1,
			Namespace: ns, EventsEndpoint: "tcp://127.0.0.1:5557", ReplayEndpoint: "tcp://127.0.0.1:5558", EventsTopic: "kv"}},
		{TypeWelcome, 1, &Welcome{Major: 1, Session: 99, AgentNonce: 7, NamespaceID: id[:], Pool: 1234, BlockBytes: 4096, SlotBytes: 4096,
			MaxRequests: 4096, MaxPins: 65536, HostEnabled: true}},
		{TypeRegister, 2, &Register{DeviceBlocks: 512, BlockBytes: 2048, Offset: 2048}},
		{TypeExtentReady, 0, &ExtentReady{Extent: 1, Slots: 15, SlotBytes: 4096, DataOffset: 4096, FileBytes: 65536}},
		{TypeOK, 2, nil},
		{TypeError, 5, &Error{Code: CodeRange, Retryable: true, Request: 77, Text: "LOOKUP count: 0 is not in 1..1024"}},
		{TypeOpen, 0, &Open{Request: 77, Generation: 1, LoRA: "ab12", LoRAName: "sql", Salt: "tenant", Tokens: AppendTokens(nil, []uint32{1, 2, 3})}},
		{TypeAppend, 0, &Append{Request: 77, Generation: 1, Offset: 3, Tokens: AppendTokens(nil, []uint32{4})}},
		{TypeLookup, 6, &Lookup{Request: 77, Generation: 1, First: 2, Count: 10, WaitMillis: 20}},
		{TypeLookupHit, 6, &LookupHit{Request: 77, Generation: 1, First: 2, Ready: 2, Coming: 3, Sources: []byte{1, 2}, Slots: slots}},
		{TypeClaim, 7, &Claim{Request: 77, Generation: 1, First: 2, Count: 2, Job: 5, Blocks: blocks}},
		{TypeClaimed, 7, &Claimed{Job: 5, Workers: 1}},
		{TypeStore, 8, &Store{Request: 77, Generation: 1, First: 0, Count: 4}},
		{TypeGrant, 8, &Grant{Request: 77, Generation: 1, Present: 2, Refused: 1,
			Grants: AppendGrants(nil, []GrantedSlot{{Block: 3, Slot: Slot{Extent: 1, Index: 4, Generation: 6}}})}},
		{TypeCommit, 9, &SlotList{Request: 77, Generation: 1, Slots: slots}},
		{TypeAbort, 0, &SlotList{Request: 77, Generation: 1, Slots: slots}},
		{TypeRelease, 0, &Range{Request: 77, Generation: 1, First: 2, Count: 2}},
		{TypeLoad, 0, &Load{Job: 5, Slots: slots, Blocks: blocks}},
		{TypeClose, 0, &Close{Request: 77, Generation: 1}},
		{TypeBye, 10, &Bye{Reason: "shutdown"}},
		{TypeResume, 11, &Resume{Session: 98, AgentNonce: 6, Granted: slots, Pinned: slots[:16]}},
		{TypeResumed, 11, &Resumed{}},
		{TypeEvicted, 0, &Evicted{Tier: 1, Hashes: AppendHashes(nil, []kv.SequenceHash{0x1122334455667788, 9}), Lost: 3}},
		{TypeReset, 12, &Reset{}},
		{TypeStats, 0, &Stats{Lookups: 1, HitBlocks: 2, Loads: 3, LoadedBlocks: 4, FailedLoads: 5, Stores: 6, StoredBlocks: 7, DroppedStores: 8,
			CopiedBytes: 9, CopyMicros: 10, Errors: 11}},
		{TypeDrain, 0, &Drain{DeadlineMillis: 2000, Reason: "the agent stops"}},
		{TypeListCached, 0, &ListCached{List: 4}},
		{TypeCached, 0, &Cached{List: 4, Hashes: AppendHashes(nil, []kv.EngineHash{0x99aabbccddeeff00, 9}), Final: true}},
		{TypeFit, 13, &Fit{Request: 77, Generation: 1, Tokens: 4095, Align: 32}},
		{TypeFitted, 13, &Fitted{Request: 77, Generation: 1, Tokens: 4064}},
	}
}

func TestFramesAreTheFrozenBytes(t *testing.T) {
	if *rewrite {
		writeGolden(t)
	}
	want := readGolden(t)
	all := samples()
	if len(want) != len(all) || len(all) != len(typeNames) {
		t.Fatalf("%d golden frames and %d samples: want %d of each", len(want), len(all), len(typeNames))
	}
	for _, s := range all {
		got, err := AppendFrame(nil, s.t, s.corr, s.m)
		if err != nil {
			t.Errorf("%s: %v", s.t, err)
			continue
		}
		if !bytes.Equal(got, want[s.t.String()]) {
			t.Errorf("%s:\n got %x\nwant %x", s.t, got, want[s.t.String()])
		}
		checkDecodes(t, s, got)
	}
}

// What minor versions 1 to 4 added comes after the keys of minor version 0, and only
// where it says something: an agent or an engine of any of them reads the others' frames.
func TestKeysOfALaterMinorVersionAreAbsentWhenTheySayNothing(t *testing.T) {
	hello := *samples()[0].m.(*Hello)
	hello.ListsCached, hello.ConsolidatedEndpoint, hello.ConsolidatorMode = true, "tcp://0.0.0.0:57001", ConsolidatorDedup
	hello.ServingEndpoint, hello.Ranks, hello.DeviceBlocks = "http://engine:8000", 2, 1000
	hello.MaxBatchedTokens, hello.Connector = 8192, "blockyard 0.1.0"
	hello.Namespace.Groups = []kv.Group{{Kind: "full", BlockSize: 16, BlockBytes: 1024, Layers: 1}}
	slot, device := AppendSlots(nil, []Slot{{Extent: 1}}), AppendTokens(nil, []uint32{7})
	welcome := Welcome{Major: 1, Session: 1, NamespaceID: make([]byte, 16), BlockBytes: 1, SlotBytes: 1}
	warns := welcome
	warns.Warning = "another engine has the port"
	stats := Stats{Errors: 11, DeviceBlocksTotal: 100, DeviceBlocksUsed: 7, RunningRequests: 2, WaitingRequests: 1,
		HandOvers: 3, HandOverBlocks: 5, HandOverMissing: 1}
	for _, c := range []struct {
		t      Type
		m, old Message
		added  []string
	}{
		{TypeHello, &hello, samples()[0].m, []string{"lists_cached", "consolidated_endpoint", "consolidator_mode", "serving_endpoint", "ranks", "device_blocks", "max_num_batched_tokens", "connector", "groups"}},
		{TypeWelcome, &warns, &welcome, []string{"warning"}},
		{TypeStats, &stats, &Stats{Errors: 11}, []string{"device_blocks_total", "device_blocks_used", "running_requests", "waiting_requests", "hand_overs", "hand_over_blocks", "hand_over_missing"}},
		{TypeLookup, &Lookup{Count: 1, Group: 63}, &Lookup{Count: 1}, []string{"group"}},
		{TypeLookupHit, &LookupHit{Group: 63}, &LookupHit{}, []string{"group"}},
		{TypeClaim, &Claim{Count: 1, Blocks: device, Group: 63}, &Claim{Count: 1, Blocks: device}, []string{"group"}},
		{TypeLoad, &Load{Slots: slot, Blocks: device, Group: 63}, &Load{Slots: slot, Blocks: device}, []string{"group"}},
		{TypeStore, &Store{Count: 1, Group: 63}, &Store{Count: 1}, []string{"group"}},
		{TypeGrant, &Grant{Group: 63}, &Grant{}, []string{"group"}},
		{TypeRelease, &Range{Count: 1, Group: 63}, &Range{Count: 1}, []string{"group"}},
	} {
		frame, err := AppendFrame(nil, c.t, 1, c.m)
		if err != nil {
			t.Fatal(err)
		}
		checkDecodes(t, sample{c.t, 1, c.m}, frame)
		before, err := AppendFrame(nil, c.t, 1, c.old)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range c.added {
			if !bytes.Contains(frame, []byte(key)) || bytes.Contains(before, []byte(key)) {
				t.Errorf("%s: key %s: want it where it says something, and only there", c.t, key)
			}
		}
	}
}

// The sample of every frame that a client sends carries a correlation exactly
// if the frame wants an answer.
func TestFramesThatWantAnAnswerCarryACorrelation(t *testing.T) {
	fromAgent := []Type{TypeWelcome, TypeExtentReady, TypeOK, TypeError, TypeLookupHit, TypeClaimed, TypeGrant, TypeLoad, TypeResumed, TypeEvicted, TypeDrain, TypeListCached, TypeFitted}
	for _, s := range samples() {
		if want := s.corr != 0 && !slices.Contains(fromAgent, s.t); s.t.WantsAnswer() != want {
			t.Errorf("%s: wants an answer: %v, want %v", s.t, !want, want)
		}
	}
}

func checkDecodes(t *testing.T, s sample, frame []byte) {
	t.Helper()
	h, body, err := ParseFrame(frame)
	if err != nil || h.Type != s.t || h.Corr != s.corr {
		t.Errorf("%s: parsed as %+v, error %v", s.t, h, err)
		return
	}
	m, known := NewMessage(s.t)
	if !known {
		t.Errorf("%s: NewMessage does not know it", s.t)
	}
	if m == nil {
		return
	}
	if err := Decode(s.t, body, m); err != nil {
		t.Errorf("%s: %v", s.t, err)
	}
	if d := cmp.Diff(s.m, m); d != "" {
		t.Errorf("%s (-sent +received):\n%s", s.t, d)
	}
}

// readGolden reads lines of the form "NAME HEX"; the hexadecimal digits may go
// on in indented lines, and # starts a comment.
func readGolden(t *testing.T) map[string][]byte {
	t.Helper()
	f, err := os.Open(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	frames := map[string][]byte{}
	var name string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line, _, _ := strings.Cut(sc.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if !strings.HasPrefix(line, " ") {
			name, fields = fields[0], fields[1:]
		}
		for _, f := range fields {
			b, err := hex.DecodeString(f)
			if err != nil {
				t.Fatalf("%s: frame %s: %v", goldenFile, name, err)
			}
			frames[name] = append(frames[name], b...)
		}
	}
	return frames
}

func writeGolden(t *testing.T) {
	t.Helper()
	var out bytes.Buffer
	out.WriteString("# One frame of each type, header and body, in hexadecimal. The bytes are frozen:\n" +
		"# a change here is a change of the protocol. The values are those of samples() in\n" +
		"# golden_test.go; the first line of a frame is its header.\n")
	for _, s := range samples() {
		b, err := AppendFrame(nil, s.t, s.corr, s.m)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s %x\n", s.t, b[:HeaderSize])
		for b = b[HeaderSize:]; len(b) > 0; b = b[min(32, len(b)):] {
			fmt.Fprintf(&out, "  %x\n", b[:min(32, len(b))])
		}
	}
	if err := os.WriteFile(goldenFile, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
