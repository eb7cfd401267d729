package blockmgr

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
)

func diskKey(t fataler, b byte) *sealed.Key {
	key, err := sealed.ParseKey(bytes.Repeat([]byte{b}, sealed.KeyBytes), "a test")
	noError(t, err)
	return key
}

// encrypted is a configuration whose disk tier is encrypted.
func encrypted(t *testing.T) Config {
	return Config{
		HostDir: t.TempDir(), DiskDir: t.TempDir(), HostBytes: hostBytes(8), DiskBytes: hostBytes(8), ExtentBytes: hostBytes(8),
		DiscardHost: true, DiskKey: diskKey(t, 1),
	}
}

// storeEncrypted stores blocks, waits until they are on disk, and stops the agent. No block is in host memory then.
func storeEncrypted(t *testing.T, cfg Config, blocks []Block) {
	p := openTestPool(t, cfg)
	p.store(blocks)
	p.quiesce()
	if got := p.tiersOf(blocks); got != strings.Repeat("B", len(blocks)) {
		t.Fatalf("the blocks are in %q", got)
	}
	p.finish()
}

// Blocks come back from an encrypted disk, also after a restart, and no byte of theirs is in a file.
func TestEncryptedDiskKeepsBlocks(t *testing.T) {
	cfg, blocks := encrypted(t), chain(1, 6)
	storeEncrypted(t, cfg, blocks)
	p := openTestPool(t, cfg)
	defer p.finish()
	for i := range blocks {
		content := p.content(&blocks[i], 0)
		for from := 0; from+16 <= len(content); from += 256 {
			if hasBytes(t, cfg.DiskDir, content[from:from+16]) {
				t.Fatalf("block %d: bytes from %d on are on disk in clear", i, from)
			}
		}
	}
	if got := sources(p.find(blocks)); got != "DDDDDD" { // find compares the bytes
		t.Errorf("found %q", got)
	}
	if st := p.Stats(); st.CorruptReads != 0 || st.ReadErrors != 0 {
		t.Errorf("%d corrupt reads, %d errors", st.CorruptReads, st.ReadErrors)
	}
}

// diskPlace returns the file of a pool's disk extent, and the place of a block in it.
func (p *testPool) diskPlace(b *Block) (path string, offset int64, ref registry.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ref = p.slots.DiskSlot(&b.Key)
	e, i := p.slots.Disk.At(ref)
	return e.Path(), e.Geometry().Offset(i), ref
}

// editFile changes bytes of a file.
func editFile(t *testing.T, path string, edit func([]byte)) {
	t.Helper()
	data, err := os.ReadFile(path)
	noError(t, err)
	edit(data)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	noError(t, err)
	_, err = f.WriteAt(data, 0)
	noError(t, errors.Join(err, f.Sync(), f.Close()))
}

// A changed byte of a slot, its nonce or its tag, and a slot in the place of another one, are misses and
// counted. The other blocks stay.
func TestEncryptedDiskRefusesForgedSlots(t *testing.T) {
	const stride = testSlotBytes + extent.SealBytes
	for name, forge := range map[string]func(data []byte, a, b int64){
		"cipher text": func(data []byte, a, _ int64) { data[a+1000] ^= 1 },
		"nonce":       func(data []byte, a, _ int64) { data[a] ^= 1 },
		"tag":         func(data []byte, a, _ int64) { data[a+12+testSlotBytes] ^= 1 },
		"swapped": func(data []byte, a, b int64) {
			first := bytes.Clone(data[a : a+stride])
			copy(data[a:a+stride], data[b:b+stride])
			copy(data[b:b+stride], first)
		},
		"copied":      func(data []byte, a, b int64) { copy(data[a:a+stride], data[b:b+stride]) },
		"zeros":       func(data []byte, a, _ int64) { clear(data[a : a+stride]) },
		"by scrubber": func(data []byte, a, _ int64) { data[a+1000] ^= 1 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := encrypted(t)
			a, b, other := chain(1, 1), chain(2, 1), chain(3, 1)
			storeEncrypted(t, cfg, a)
			p := openTestPool(t, cfg)
			p.store(b)
			p.store(other)
			p.quiesce()
			path, offA, refA := p.diskPlace(&a[0])
			_, offB, _ := p.diskPlace(&b[0])
			editFile(t, path, func(data []byte) { forge(data, offA, offB) })
			if name == "by scrubber" {
				buf := extent.AlignedBytes(testSlotBytes)
				if !p.mover.ScrubSlot(registry.Disk, refA, buf) {
					t.Error("the slot is not checked")
				}
			} else if got := sources(p.find(a)); got != "" {
				t.Errorf("found %q in the forged slot", got)
			}
			if st := p.Stats(); st.CorruptReads != 1 || st.ReadErrors != 0 || st.DiskOpen {
				t.Errorf("%d corrupt reads, %d errors, breaker open %t", st.CorruptReads, st.ReadErrors, st.DiskOpen)
			}
			p.finish()
			q := openTestPool(t, cfg)
			defer q.finish()
			want := map[bool]string{true: "", false: "D"}[name == "swapped"]
			if got := sources(q.find(b)) + sources(q.find(other)); got != want+"D" {
				t.Errorf("found %q of the other blocks, want %q", got, want+"D")
			}
		})
	}
}

// A tier that was written with another key, or in clear, ends the start with an error that names file and
// way out, and stays as it is. With DiskKeyReset it is emptied, once.
func TestDiskKeyMustFit(t *testing.T) {
	keys := map[string]*sealed.Key{"none": nil, "one": diskKey(t, 1), "two": diskKey(t, 2)}
	for before, written := range keys {
		for after, key := range keys {
			if before == after {
				continue
			}
			t.Run(before+" then "+after, func(t *testing.T) {
				cfg, blocks := encrypted(t), chain(1, 2)
				cfg.DiskKey = written
				storeEncrypted(t, cfg, blocks)
				wrong := cfg
				wrong.DiskKey = key
				_, err := Open(wrong)
				if !errors.Is(err, sealed.ErrKey) || !strings.Contains(err.Error(), filepath.Join(cfg.DiskDir, "slots.key")) || !strings.Contains(err.Error(), "--disk-key-reset") {
					t.Fatalf("error %v", err)
				}
				p := openTestPool(t, cfg)
				if got := sources(p.find(blocks)); got != "DD" {
					t.Errorf("found %q after a start with another key was refused", got)
				}
				p.finish()
				wrong.DiskKeyReset = true
				storeEncrypted(t, wrong, chain(2, 2)) // the tier has room: the old blocks are gone
				q := openTestPool(t, wrong)           // a second start resets nothing
				if got := sources(q.find(blocks)) + sources(q.find(chain(2, 2))); got != "DD" {
					t.Errorf("found %q after a reset", got)
				}
				q.finish()
				if _, err := Open(cfg); !errors.Is(err, sealed.ErrKey) {
					t.Errorf("the key of before: error %v", err)
				}
			})
		}
	}
}

// Extents that are left after a crash in a reset, or before the first slot table, are no reason to refuse.
func TestCrashWhileTheKeyIsNew(t *testing.T) {
	cfg := encrypted(t)
	arena, err := sealed.Open(cfg.DiskDir, diskKey(t, 2)) // an agent that died before it made a table
	if err != nil || arena == nil {
		t.Fatal(err)
	}
	storeEncrypted(t, cfg, chain(1, 1))
	noError(t, os.Remove(filepath.Join(cfg.DiskDir, "slots.table"))) // as a reset leaves it
	p := openTestPool(t, cfg)
	defer p.finish()
	if got := sources(p.find(chain(1, 1))); got != "" || p.Stats().ExtentsRemoved != 1 {
		t.Errorf("found %q, %d extents removed", got, p.Stats().ExtentsRemoved)
	}
}

// Zeros that a tenant's time asks for cover nonce and tag as well.
func TestEncryptedSlotsAreErased(t *testing.T) {
	cfg := encrypted(t)
	blocks := chain(1, 1)
	p := openTestPool(t, cfg)
	defer p.finish()
	p.store(blocks)
	p.quiesce()
	path, off, ref := p.diskPlace(&blocks[0])
	p.mu.Lock()
	e, i := p.slots.Disk.At(ref)
	p.mu.Unlock()
	noError(t, e.Disk.EraseSlot(i))
	data, err := os.ReadFile(path)
	noError(t, err)
	stride := int64(testSlotBytes + storage.PageSize)
	if !bytes.Equal(data[off:off+stride], make([]byte, stride)) {
		t.Error("bytes of the sealed slot are left")
	}
}
