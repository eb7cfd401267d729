package storage

import (
	"bufio"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// vectors are the records of testdata/records.txt, in its order.
var vectors = map[string]Record{
	"free": {Namespace: 3, Generation: 9},
	"granted": {
		Key: kv.BlockKey{0: 1, 15: 2}.InGroup(0), Parent: kv.BlockKey{0: 0xaa}, Namespace: 1, Seed: 1337,
		Length: 4096, Local: 0x1111, Seq: 0x1111, Generation: 2, Recency: 7, State: StateGranted, Session: 42,
		Priority: 3,
	},
	"sealed": {
		Key:    kv.BlockKey{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}.InGroup(0x01020304),
		Parent: kv.BlockKey{16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, Namespace: 63,
		Seed: 0x1122334455667788, Position: 0x01020304, Length: 2 << 20, Local: 0x2122232425262728,
		Seq: 0x3132333435363738, ParentSeq: 0x4142434445464748, Checksum: 0x5152535455565758,
		Generation: 0x6162636465666768, Recency: 0x71727374, State: StateSealed,
		Priority: 0x81828384,
	},
	"owned": {
		Key: kv.BlockKey{0: 1, 15: 2}.InGroup(0), Parent: kv.BlockKey{0: 0xaa}, Namespace: 1, Seed: 1337,
		Length: 4096, Local: 0x1111, Seq: 0x1111, Generation: 2, Recency: 7, State: StateSealed, Checksum: 0x99,
		Priority: 3, Owner: 0xa1a2a3a4a5a6a7a8,
	},
}

func TestRecordsAreEncodedAsTheFrozenVectorsSay(t *testing.T) {
	f, err := os.Open("testdata/records.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	checked := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, digits, ok := strings.Cut(lines.Text(), " ")
		if !ok || name == "#" {
			continue
		}
		want, ok := vectors[name]
		if !ok {
			t.Fatalf("vector %q is not known to the test", name)
		}
		raw, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(AppendRecord(nil, &want)); got != digits {
			t.Errorf("%s encodes to\n%s, want\n%s", name, got, digits)
		}
		got, err := DecodeRecord(raw)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s decodes to %v:\n%s", name, err, diff)
		}
		checked++
	}
	if checked != len(vectors) {
		t.Errorf("%d vectors checked, want %d", checked, len(vectors))
	}
}

func drawRecord(t *rapid.T) Record {
	var key, parent kv.BlockKey
	copy(key[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key"))
	copy(parent[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "parent"))
	return Record{
		Key: key.InGroup(rapid.Uint32().Draw(t, "group")), Parent: parent,
		Namespace: rapid.Uint32().Draw(t, "ns"), Seed: rapid.Uint64().Draw(t, "seed"),
		Position: rapid.Uint32().Draw(t, "position"), Length: rapid.Uint32().Draw(t, "length"),
		Local: kv.LocalHash(rapid.Uint64().Draw(t, "local")), Seq: kv.SequenceHash(rapid.Uint64().Draw(t, "seq")),
		ParentSeq: kv.SequenceHash(rapid.Uint64().Draw(t, "parentSeq")),
		Checksum:  rapid.Uint64().Draw(t, "sum"), Generation: rapid.Uint64().Draw(t, "gen"),
		Recency: rapid.Uint32().Draw(t, "recency"), State: State(rapid.IntRange(0, NumStates-1).Draw(t, "state")),
		Session: rapid.Uint64().Draw(t, "session"), Priority: rapid.Uint32().Draw(t, "priority"),
		Owner: rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64()).Draw(t, "owner"),
	}
}

func TestRecordSurvivesARoundTripAndNoBitMayFlip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRecord(t)
		b := AppendRecord(nil, &want)
		if len(b) != RecordSize {
			t.Fatalf("%d bytes", len(b))
		}
		got, err := DecodeRecord(b)
		if err != nil || got != want {
			t.Fatalf("got %+v, %v, want %+v", got, err, want)
		}
		// The recency is a hint that changes without the rest.
		bit := rapid.IntRange(0, 8*RecordSize-1).Filter(func(bit int) bool { return bit/32 != recencyOffset/4 }).Draw(t, "bit")
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := DecodeRecord(b); !errors.Is(err, ErrBadRecord) {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
	})
}

func TestHeaderIsEncodedAsItsCommentSays(t *testing.T) {
	h := header{
		kind: kindDisk, extentBytes: 0x01020304, stride: 0x100, bootID: [16]byte{0xb0, 15: 0xb1},
		nextExtent: 0x05060708, sequence: 0x090a0b0c,
		directory: []directoryItem{{kv.NamespaceID{0xaa, 15: 0xbb}, 0x2000}},
	}
	page := h.encode()
	want := "4259415244544231" + "02000000" + "02000000" + "0403020100000000" + "00010000" + "01000000" +
		"b00000000000000000000000000000b1" + "0807060500000000" + "0c0b0a0900000000" +
		"aa0000000000000000000000000000bb" + "0020000000000000"
	if got := hex.EncodeToString(page[:len(want)/2]); got != want {
		t.Errorf("header starts with\n%s, want\n%s", got, want)
	}
	got, err := decodeHeader(page)
	if diff := cmp.Diff(h, got, cmp.AllowUnexported(header{}, directoryItem{})); err != nil || diff != "" {
		t.Errorf("decodes to %v:\n%s", err, diff)
	}
}

func TestSectionHeadIsEncodedAsItsCommentSays(t *testing.T) {
	h := sectionHead{extent: 0x01020304, namespace: 5, slots: 0x0607, slotBytes: 0x2000}
	page := h.encode()
	want := "4259415244534331" + "04030201" + "05000000" + "07060000" + "00000000" + "0020000000000000" + "5d3890d4"
	if got := hex.EncodeToString(page); got != want {
		t.Errorf("section starts with\n%s, want\n%s", got, want)
	}
	if got, err := decodeSectionHead(page); err != nil || got != h {
		t.Errorf("decodes to %+v, %v", got, err)
	}
	for i := range page {
		page[i] ^= 1
		if _, err := decodeSectionHead(page); err == nil {
			t.Errorf("byte %d does not count", i)
		}
		page[i] ^= 1
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for _, r := range vectors {
		f.Add(AppendRecord(nil, &r))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRecord(b)
		if err != nil {
			return
		}
		if got := AppendRecord(nil, &r); string(got) != string(b[:RecordSize]) {
			t.Errorf("%x decodes and encodes to %x", b, got)
		}
	})
}

func FuzzDecodeSectionHead(f *testing.F) {
	h := sectionHead{extent: 1, slots: 2, slotBytes: PageSize}
	f.Add(h.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeSectionHead(b)
		if again, err2 := decodeSectionHead(h.encode()); err == nil && (err2 != nil || again != h) {
			t.Errorf("%+v encodes to %+v, %v", h, again, err2)
		}
	})
}

func FuzzDecodeHeader(f *testing.F) {
	h := header{kind: kindDisk, extentBytes: 1 << 20, stride: 256, directory: []directoryItem{{slotBytes: 4096}}}
	f.Add(h.encode())
	f.Add(append(make([]byte, headerSize), h.encode()...))
	f.Add([]byte(tableMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeaders(b)
		if err == nil && len(h.directory) > MaxNamespaces {
			t.Errorf("%d namespaces", len(h.directory))
		}
	})
}

func TestChecksumIsBoundToKeyGenerationAndEveryByte(t *testing.T) {
	key, other := kv.BlockKey{1}.InGroup(0), kv.BlockKey{1}.InGroup(1)
	data := make([]byte, 4096)
	sum := extent.ContentSum(key, data)
	bound := Bind(sum, key, 7)
	if Bind(bound, key, 7) != sum {
		t.Error("binding twice is not the identity")
	}
	if Bind(sum, key, 8) == bound || Bind(sum, other, 7) == bound || extent.ContentSum(other, data) == sum {
		t.Error("another generation, key or group gives the same sum")
	}
	for i := range data {
		data[i] ^= 1
		if extent.ContentSum(key, data) == sum {
			t.Fatalf("byte %d does not count", i)
		}
		data[i] ^= 1
	}
}
