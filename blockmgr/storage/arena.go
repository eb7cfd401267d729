package storage

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
)

const (
	// PageSize is the unit of slots, of disk I/O and of the slot table.
	PageSize = extent.PageSize
	// MaxExtentBytes bounds one extent file. Clients map a pool in pieces, and no
	// single mapping must be huge.
	MaxExtentBytes = 1 << 30
	// DefaultExtentBytes is the smallest size that ExtentBytesFor chooses.
	DefaultExtentBytes = 64 << 20

	// fewExtents is the number of extents beyond which ExtentBytesFor makes them
	// larger: each extent is an open file.
	fewExtents = 4096
	// unboundedBytes is the budget of an arena without one.
	unboundedBytes = 1 << 60

	tableName = "slots.table"
)

// ExtentBytesFor returns the default extent size of a tier of tierBytes:
// DefaultExtentBytes, doubled until the tier has few extents or an extent has
// MaxExtentBytes. A tier without a size has 0 bytes.
func ExtentBytesFor(tierBytes uint64) uint64 {
	size := uint64(DefaultExtentBytes)
	for size < MaxExtentBytes && tierBytes/size > fewExtents {
		size *= 2
	}
	return size
}

// ArenaConfig describes one arena: a directory with a slot table and extents.
type ArenaConfig struct {
	// Dir is made when absent.
	Dir string
	// Bytes is the budget: the bytes of the slots of all extents. Generation words, rounding
	// to huge pages and the slot table are not included. Zero is no budget: the caller of
	// Grow bounds the extents.
	Bytes uint64
	// ExtentBytes is the size of the slots of one extent; the last extent may be
	// smaller. Zero is ExtentBytesFor(Bytes), and accepts an existing table with
	// extents of any size.
	ExtentBytes uint64
	// Nodes are the memory nodes (NUMA) of new host extents; empty for any. See extent.OnNodes.
	Nodes []int
	// Disk says how the files of a disk arena are opened. The arena sets its Cipher.
	Disk extent.DiskOptions
	// Key encrypts a disk arena; nil for none. KeyReset empties an arena that was written with another key,
	// or without one. Without KeyReset such an arena is refused; see sealed.ErrKey.
	Key      *sealed.Key
	KeyReset bool
	Log      *zap.Logger
}

// arena is the common part of HostArena and DiskArena: the directory, the locked table, the
// budget and the extents. Its methods are safe for concurrent use.
type arena struct {
	cfg     ArenaConfig
	kind    arenaKind
	table   *table
	madeDir bool
	fs      extent.FSInfo
	// keys are those of an encrypted disk arena, nil without a key.
	keys *sealed.Arena
	// removeFile removes the file of an extent.
	removeFile func(path string) error

	mu sync.Mutex
	// extents has the existing extents and those that are being made, by section number.
	extents map[uint32]extentEntry
	// namespacesInUse has the directory indices that Namespace has returned, until Forget. An index
	// stays its namespace's even if the namespace has no extent.
	namespacesInUse map[uint32]struct{}

	// budget is ArenaConfig.Bytes, or the bytes of the last Resize. used is the number of bytes of the
	// budget that the slots of all extents take.
	budget, used atomic.Uint64
	// leavingExtents counts the extents that are leaving; see extentEntry.
	leavingExtents atomic.Int64
	// removed counts the extents of an earlier agent that were not taken over.
	removed atomic.Uint64
}

// extentEntry is one extent of an arena.
type extentEntry struct {
	sectionHead
	// unclaimed is true for an extent of an earlier agent that no pool has claimed.
	unclaimed bool
	// leaving is true for an extent without users whose file could not be removed.
	leaving bool
}

// openArena makes the directory, opens and locks the slot table and takes over the extents of an
// earlier agent. It unlinks them if the table says nothing about their blocks. remove removes the
// file of an extent later. ErrLocked: another agent has the arena open.
func openArena(cfg ArenaConfig, kind arenaKind, remove func(path string) error) (*arena, error) {
	_, err := os.Stat(cfg.Dir)
	made := errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("%s directory %q: %w", kind, cfg.Dir, err)
	}
	fs, err := extent.StatFS(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("%s directory %q: %w", kind, cfg.Dir, err)
	}
	anySize := cfg.ExtentBytes == 0
	if anySize {
		cfg.ExtentBytes = ExtentBytesFor(cfg.Bytes)
	}
	cfg.Bytes = cmp.Or(cfg.Bytes, unboundedBytes)
	want := header{kind: kind, extentBytes: cfg.ExtentBytes, stride: strideOf(cfg.ExtentBytes), bootID: readBootID()}
	otherKey := false
	t, err := openTable(filepath.Join(cfg.Dir, tableName), want, anySize, fs.Unit, cfg.Disk.Wrap, func(empty bool) (err error) {
		otherKey, err = cfg.checkKey(kind, empty)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s directory %q: %w", kind, cfg.Dir, err)
	}
	cfg.ExtentBytes = max(cfg.ExtentBytes, t.header.extentBytes) // with anySize the table's may be larger
	a := &arena{
		cfg: cfg, kind: kind, table: t, madeDir: made, fs: fs, removeFile: remove,
		extents: map[uint32]extentEntry{}, namespacesInUse: map[uint32]struct{}{},
	}
	a.budget.Store(cfg.Bytes)
	if otherKey { // the caller has asked to empty the arena
		t.sectionsHold, t.coldReason = false, errOtherKey
	}
	if err = a.recoverExtents(); err == nil {
		err = a.openKeys(otherKey)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s directory %q: %w", kind, cfg.Dir, err), t.close())
	}
	return a, nil
}

// recoverExtents takes over the extents of an earlier agent whose sections of the slot table, the
// records of their slots, are good, up to the budget. It unlinks the other extents. A table that
// says nothing about their blocks is emptied first.
func (a *arena) recoverExtents() error {
	files, err := extentFiles(a.cfg.Dir)
	if err != nil {
		return err
	}
	next := a.table.header.nextExtent // the id of the next extent: no id is used twice
	for _, f := range files {
		next = max(next, uint64(f.id)+1)
	}
	if next == 0 {
		// Clients of a removed arena may still know its ids. A random start makes equal ids
		// unlikely.
		next = 1 + rand.Uint64N(1<<30)
	}
	if a.table.sectionsHold { // the table describes the extents
		if m := a.table.migrated; m != (migrated{}) {
			a.cfg.Log.Info("slot table of an older version is migrated",
				zap.Stringer("tier", a.kind), zap.Int("extents", m.extents), zap.Int("slots", m.slots))
		}
		a.table.header.nextExtent = next
		return a.takeOver(files)
	}
	if err := a.table.reset(next); err != nil {
		return err
	}
	if a.table.coldReason == nil { // the file of the table is new
		return a.removeFiles(files, errors.New("its slot table is gone"))
	}
	a.cfg.Log.Warn("slot table is made anew, stored blocks are forgotten and their extents removed",
		zap.Stringer("tier", a.kind), zap.String("table", a.table.path), zap.String("old_table", a.table.oldPath),
		zap.Int("extents", len(files)), zap.Error(a.table.coldReason))
	return a.unlinkFiles(files)
}

// takeOver enters the extents that the table describes, oldest first, until the budget is used up.
// Extents that processes of a session may still touch come first, even beyond the budget. It
// removes the files of the others: bad ones, and those beyond the budget.
func (a *arena) takeOver(files []extentFile) error {
	slices.SortFunc(files, func(x, y extentFile) int { return cmp.Compare(x.id, y.id) })
	var bad, beyond []extentFile
	var firstBad error
	good := map[extentFile]sectionHead{}
	for _, f := range files {
		head, err := a.inspect(f)
		if err != nil {
			bad, firstBad = append(bad, f), cmp.Or(firstBad, err)
			continue
		}
		good[f] = head
		if a.hasSessions(head.namespace) {
			a.enterUnclaimed(f.section, head)
		}
	}
	for _, f := range files {
		head, ok := good[f]
		if _, entered := a.extents[f.section]; !ok || entered {
			continue
		}
		if a.used.Load()+head.bytes() > a.Bytes() {
			beyond = append(beyond, f)
			continue
		}
		a.enterUnclaimed(f.section, head)
	}
	return errors.Join(a.removeFiles(bad, firstBad), a.removeFiles(beyond, fmt.Errorf("%s size %d is used up", a.kind, a.Bytes())))
}

// enterUnclaimed enters an extent of an earlier agent that no pool has claimed yet.
func (a *arena) enterUnclaimed(section uint32, head sectionHead) {
	a.extents[section] = extentEntry{sectionHead: head, unclaimed: true}
	a.used.Add(head.bytes())
}

// inspect returns the head of the section that describes an extent file, or an error that says why
// the file cannot be taken over. The head must name the extent and a known namespace with the same
// slots, and the file must have the size that follows from them.
func (a *arena) inspect(f extentFile) (sectionHead, error) {
	if !f.whole { // it has a temporary name
		return sectionHead{}, errors.New("it was never finished")
	}
	head, err := a.table.readSectionHead(f.section)
	if err != nil {
		return sectionHead{}, err
	}
	item, ok := a.table.item(head.namespace)
	if head.extent != f.id || !ok || head.slotBytes != item.slotBytes || head.slots == 0 || head.slots > a.table.stride {
		return sectionHead{}, fmt.Errorf("its section names extent %d, namespace %d, %d slots of %d bytes",
			head.extent, head.namespace, head.slots, head.slotBytes)
	}
	st, err := os.Lstat(filepath.Join(a.cfg.Dir, f.name()))
	if err != nil {
		return sectionHead{}, err
	}
	if want := a.geometry(&head).FileBytes(); !st.Mode().IsRegular() || uint64(st.Size()) != want {
		return sectionHead{}, fmt.Errorf("%d bytes, mode %v: want a file of %d", st.Size(), st.Mode(), want)
	}
	return head, nil
}

func (a *arena) geometry(h *sectionHead) extent.Geometry {
	if a.kind == kindHost {
		return extent.HostGeometry(h.slots, h.slotBytes, a.fs.Unit)
	}
	return diskGeometry(h.slots, h.slotBytes, a.cfg.Key)
}

// path returns the file of an extent.
func (a *arena) path(section, id uint32) string {
	return filepath.Join(a.cfg.Dir, extentFile{section: section, id: id, whole: true}.name())
}

// removeFiles logs and unlinks extent files of an earlier agent. why is the reason for the
// first file. A client that still maps a file keeps its memory.
func (a *arena) removeFiles(files []extentFile, why error) error {
	if len(files) == 0 {
		return nil
	}
	a.cfg.Log.Warn("extents of an earlier agent are removed", zap.Stringer("tier", a.kind), zap.String("dir", a.cfg.Dir),
		zap.Int("extents", len(files)), zap.String("first", files[0].name()), zap.NamedError("why", why))
	return a.unlinkFiles(files)
}

// unlinkFiles unlinks extent files of an earlier agent without a log line.
func (a *arena) unlinkFiles(files []extentFile) error {
	a.removed.Add(uint64(len(files)))
	var errs []error
	for _, f := range files {
		errs = append(errs, unlink(filepath.Join(a.cfg.Dir, f.name())))
	}
	return errors.Join(errs...)
}

// hasSessions reports whether processes of a namespace may still touch its
// extents. Only the agent touches a disk extent.
func (a *arena) hasSessions(ns uint32) bool {
	item, ok := a.table.item(ns)
	return ok && a.table.sessions != nil && a.table.sessions.serves(item.id)
}

// entry returns the extent of a section.
func (a *arena) entry(section uint32) extentEntry {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.extents[section]
}

// Room returns the unused bytes of the budget. Unclaimed extents count as used. Room does not
// wait.
func (a *arena) Room() uint64 {
	budget := a.Bytes()
	return budget - min(a.used.Load(), budget)
}

// Bytes returns the budget, Used the bytes of it that extents take. Used is more than Bytes while
// extents are still to go after a Resize.
func (a *arena) Bytes() uint64 { return a.budget.Load() }

// Used returns the bytes of the budget that extents take; see Bytes.
func (a *arena) Used() uint64 { return a.used.Load() }

// Resize changes the budget. Existing extents stay; the caller drops those beyond a smaller budget.
func (a *arena) Resize(bytes uint64) { a.budget.Store(bytes) }

// Leaving counts the dropped extents whose files could not be removed yet. Their
// bytes stay in the budget, and each Grow tries again. Leaving does not wait.
func (a *arena) Leaving() int { return int(a.leavingExtents.Load()) }

// Removed counts the extents of an earlier agent that could not be taken over:
// damaged, never finished, of another layout, or beyond the budget.
func (a *arena) Removed() uint64 { return a.removed.Load() }

// ExtentBytes returns the size of the slots of one extent; see ArenaConfig.
func (a *arena) ExtentBytes() uint64 { return a.cfg.ExtentBytes }

// MostSlots returns how many slots of slotBytes the largest extent has, bounded by its file and
// its section.
func (a *arena) MostSlots(slotBytes uint64) uint64 {
	slots := uint64(MaxExtentBytes / slotBytes)
	if a.kind == kindHost {
		slots = extent.HostSlots(MaxExtentBytes, slotBytes)
	}
	return min(slots, uint64(a.table.stride))
}
