package blockmgr

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
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

// A reset that ends half-way is ended by the next start with --disk-key-reset, and leaves no block of before.
func TestResetEndsHalfway(t *testing.T) {
	for name, c := range map[string]struct {
		tableWrites int  // that work
		keyFails    bool // slots.key cannot be written after the old one is removed
		refused     bool // the next start without --disk-key-reset
	}{
		"table emptied, old slots.key":    {tableWrites: 0},
		"one header, old slots.key":       {tableWrites: 1, refused: true},
		"slots.key removed, none written": {tableWrites: 2, keyFails: true, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, blocks := encrypted(t), chain(1, 2)
			storeEncrypted(t, cfg, blocks)
			cfg.DiskKey = diskKey(t, 2)
			halfway, obstacle := cfg, filepath.Join(cfg.DiskDir, "slots.key.new")
			halfway.DiskKeyReset = true
			halfway.WrapDisk = faults(func(op storagetest.Op, n int) storagetest.Fault {
				if op == storagetest.OpWrite && n > c.tableWrites {
					return storagetest.FaultEIO
				}
				return storagetest.FaultNone
			}, isTable)
			if c.keyFails {
				noError(t, os.Mkdir(obstacle, 0o700))
			}
			if _, err := Open(halfway); err == nil || errors.Is(err, sealed.ErrKey) {
				t.Fatalf("a reset that cannot write: error %v", err)
			}
			if _, err := os.Stat(filepath.Join(cfg.DiskDir, "slots.key")); errors.Is(err, os.ErrNotExist) != c.keyFails {
				t.Fatalf("slots.key: %v", err)
			}
			noError(t, os.RemoveAll(obstacle))
			if c.refused {
				if _, err := Open(cfg); !errors.Is(err, sealed.ErrKey) {
					t.Errorf("a start without --disk-key-reset: error %v", err)
				}
				cfg.DiskKeyReset = true
			}
			storeEncrypted(t, cfg, chain(2, 8)) // the tier has room for 8 blocks: those of before are gone
			p := openTestPool(t, cfg)
			defer p.finish()
			if got := sources(p.find(blocks)) + sources(p.find(chain(2, 8))); got != "DDDDDDDD" {
				t.Errorf("found %q", got)
			}
		})
	}
}

// When a tenant's time is up, the zeros cover nonce and tag as well.
func TestEncryptedSlotsAreErased(t *testing.T) {
	cfg := encrypted(t)
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, cfg)
		p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Minute})
		blocks := p.owned("a", 1, 1)
		p.store(blocks)
		p.quiesce()
		path, off, _ := p.diskPlace(&blocks[0])
		slot := func() []byte {
			data, err := os.ReadFile(path)
			noError(t, err)
			return data[off : off+int64(testSlotBytes+extent.SealBytes)]
		}
		zeros := make([]byte, testSlotBytes+extent.SealBytes)
		if bytes.Equal(slot()[testSlotBytes:], zeros[testSlotBytes:]) {
			t.Fatal("nothing is behind the slot")
		}
		time.Sleep(2 * time.Minute)
		p.quiesce()
		if !bytes.Equal(slot(), zeros) {
			t.Error("bytes of the sealed slot are left")
		}
	})
}

// byteBudget counts the bytes that the write budget is told of.
type byteBudget struct {
	countedBudget
	reserved, bytes atomic.Int64
}

func (b *byteBudget) Reserve(bytes uint64, _ time.Time) bool {
	b.reserved.Add(int64(bytes))
	return true
}

func (b *byteBudget) Settle(bytes uint64, written bool, _ time.Time) {
	b.reserved.Add(-int64(bytes))
	if written {
		b.bytes.Add(int64(bytes))
	}
}

func (b *byteBudget) Wrote(bytes uint64, _ time.Time) { b.bytes.Add(int64(bytes)) }

// byteCounter counts the bytes that are written to a file.
type byteCounter struct {
	extent.File
	bytes *atomic.Int64
}

func (c byteCounter) WriteAt(p []byte, off int64) (int, error) {
	c.bytes.Add(int64(len(p)))
	return c.File.WriteAt(p, off)
}

// The write budget counts each byte that an encrypted disk is told to write: blocks with nonce and tag, their
// zeros, and records.
func TestWriteBudgetOfAnEncryptedDisk(t *testing.T) {
	budget, onDisk := &byteBudget{}, &atomic.Int64{}
	cfg := encrypted(t)
	cfg.Budget = budget
	cfg.WrapDisk = func(_ string, f extent.File) extent.File { return byteCounter{f, onDisk} }
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, cfg)
		p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Minute})
		p.store(chain(2, 1)) // the tier makes its extent, which no budget bounds
		p.quiesce()
		var before, diskBefore int64
		compare := func(what string, slots int64) {
			t.Helper()
			counted, wrote := budget.bytes.Load()-before, onDisk.Load()-diskBefore
			if counted != wrote || wrote < slots*(testSlotBytes+extent.SealBytes) || budget.reserved.Load() != 0 {
				t.Errorf("%s: the budget has %d bytes, the disk %d, %d are reserved", what, counted, wrote, budget.reserved.Load())
			}
			before, diskBefore = budget.bytes.Load(), onDisk.Load()
		}
		before, diskBefore = budget.bytes.Load(), onDisk.Load()
		blocks := p.owned("a", 1, 6)
		p.store(blocks)
		p.quiesce()
		compare("blocks", 6)
		if st := p.Stats(); st.BytesWritten != 7*(testSlotBytes+extent.SealBytes) {
			t.Errorf("%d bytes written", st.BytesWritten)
		}
		time.Sleep(2 * time.Minute)
		p.quiesce()
		compare("zeros", 6)
		p.store(p.owned("a", 3, 2))
		p.quiesce()
		compare("blocks again", 2)
		gone, _, _ := p.idleExtent(registry.Disk, 0)
		if gone == nil || !p.takeOut(registry.Disk, gone) {
			t.Fatal("the disk extent is in use")
		}
		p.broker.drop(gone)
		compare("an extent that leaves", 2)
	})
}

// A block that fits the write budget without nonce and tag alone leaves a warning.
func TestEncryptedBlocksLargerThanTheWriteBudgetAreLogged(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	cfg := encrypted(t)
	cfg.Log, cfg.Budget = zap.New(core), &slotBudget{}
	newTestPool(t, cfg)
	if n := logs.FilterMessageSnippet("larger than the write budget").Len(); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
}

// slotBudget has bytes for a slot in clear.
type slotBudget struct{ countedBudget }

func (*slotBudget) Most() uint64 { return testSlotBytes }
