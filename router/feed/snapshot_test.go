package feed

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// testImages are feeds without blocks, with runs of all forms, and with a run that
// is longer than one of a snapshot.
func testImages() []feedImage {
	var images []feedImage
	for i := range 3 {
		images = append(images, feedImage{
			cursor: uint64(100 + i), announcement: sourcetest.NewPublisher(uint64(11+i), sourcetest.WorkerOwner(uint64(i+1)), 7).Meta,
		})
	}
	for i, n := range []int{1, 5, 40} {
		e := kvevent.RouterEvent{Tier: kv.Tiers[i], Blocks: chained(n, 0, false)}
		if i > 0 {
			e.Parent, e.HasParent, e.Blocks = 99, true, chained(n, 99, true)
		}
		images[1].events = append(images[1].events, e)
		// Names that are not the chain's.
		e.Blocks = slices.Clone(e.Blocks)
		e.Blocks[n/2].Hash ^= 1
		images[1].events = append(images[1].events, e)
	}
	images[2].events = []kvevent.RouterEvent{{Tier: kv.TierExternal, Blocks: chained(2*maxRun+7, 0, false)}}
	images[1].events = append(images[1].events,
		kvevent.RouterEvent{Tier: kv.TierDevice, Group: 1, Blocks: []kvevent.StoredBlock{{Hash: 5}, {Hash: 1 << 63}}},
		kvevent.RouterEvent{Tier: kv.TierDisk, Group: 63, Blocks: []kvevent.StoredBlock{{Hash: 9}}})
	for _, f := range images {
		for i := range f.events {
			e := &f.events[i]
			e.Owner, e.Kind, e.ID = f.announcement.Owner, kvevent.Stored, uint64(i)+1
		}
	}
	return images
}

// chained is a run of n blocks.
func chained(n int, above kv.SequenceHash, inside bool) []kvevent.StoredBlock {
	var blocks []kvevent.StoredBlock
	for i := range n {
		b := kvevent.StoredBlock{Local: kv.LocalHash(i * 7919)}
		b.Hash = chain(above, inside, b.Local)
		blocks = append(blocks, b)
		above, inside = b.Hash, true
	}
	return blocks
}

func encodeSnapshot(t testing.TB, position uint64, images []feedImage) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := newSnapshotWriter(&out, position)
	for i := range images {
		err = errors.Join(err, w.add(&images[i]))
	}
	if err = errors.Join(err, w.finish()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func readSnapshot(r io.Reader) (images []feedImage, position uint64, err error) {
	s, err := newSnapshotReader(r)
	if err != nil {
		return nil, 0, err
	}
	for {
		f, err := s.next()
		if errors.Is(err, io.EOF) {
			return images, s.position, nil
		}
		if err != nil {
			return nil, 0, err
		}
		images = append(images, *f)
	}
}

func TestSnapshotIsReadAsItWasWritten(t *testing.T) {
	want := testImages()
	got, position, err := readSnapshot(bytes.NewReader(encodeSnapshot(t, 42, want)))
	if err != nil || position != 42 || len(got) != len(want) {
		t.Fatalf("%d feeds at %d, %v", len(got), position, err)
	}
	for i := range want {
		if got[i].announcement != want[i].announcement || got[i].cursor != want[i].cursor {
			t.Errorf("feed %d is not the one that was written", i)
		}
		if diff := cmp.Diff(inPlace(want[i].events), inPlace(got[i].events)); diff != "" {
			t.Errorf("blocks of feed %d (-want +got):\n%s", i, diff)
		}
	}
}

// placedBlock is a block in a tier with its place.
type placedBlock struct {
	Owner     kv.Owner
	Tier      kv.Tier
	Parent    kv.SequenceHash
	HasParent bool
	Block     kvevent.StoredBlock
}

// inPlace takes runs apart.
func inPlace(events []kvevent.RouterEvent) []placedBlock {
	var out []placedBlock
	for i := range events {
		e := events[i]
		for _, b := range e.Blocks {
			out = append(out, placedBlock{e.Owner, e.Tier, e.Parent, e.HasParent, b})
			e.Parent, e.HasParent = b.Hash, true
		}
	}
	return out
}

// TestSnapshotsOfChainsAreSmall: a block takes its LocalHash and no more, where
// its name follows from its place.
func TestSnapshotsOfChainsAreSmall(t *testing.T) {
	image := testImages()[2]
	n := len(image.events[0].Blocks)
	if size := len(encodeSnapshot(t, 1, []feedImage{image})); size > 8*n+300 {
		t.Errorf("%d bytes for %d blocks, want 8 each and a little", size, n)
	}
}

// TestDamagedSnapshotsAreRefused: neither a flipped bit nor a missing end passes.
func TestDamagedSnapshotsAreRefused(t *testing.T) {
	images := testImages()[:2]
	data := encodeSnapshot(t, 42, images)
	for n := range data {
		if _, _, err := readSnapshot(bytes.NewReader(data[:n])); err == nil {
			t.Fatalf("the first %d of %d bytes were accepted", n, len(data))
		}
		bad := bytes.Clone(data)
		bad[n] ^= 1 << (n % 8)
		if _, _, err := readSnapshot(bytes.NewReader(bad)); err == nil {
			t.Fatalf("byte %d of %d may be changed", n, len(data))
		}
	}
}

func FuzzSnapshot(f *testing.F) {
	images := testImages()[:2]
	images[1].events = images[1].events[:3]
	f.Add(encodeSnapshot(f, 42, images))
	f.Fuzz(func(t *testing.T, data []byte) {
		images, _, err := readSnapshot(bytes.NewReader(data))
		if err != nil {
			return
		}
		for i := range images {
			x, err := index.New(index.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := x.Replace(images[i].announcement.Owner, images[i].events); err != nil {
				t.Fatal(err)
			}
		}
	})
}
