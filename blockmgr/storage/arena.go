package storage

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// ArenaConfig describes one arena: a directory with a slot table and extents.
type ArenaConfig struct {
	// Dir is made when absent.
	Dir string
	// Bytes is the budget: how much the slots of all extents take together. What
	// else is in the files comes on top: the generation words at the head of a
	// host extent (a page for 512 slots), rounding to huge pages, and the table.
	// Zero is no budget: whoever asks for extents bounds them.
	Bytes uint64
	// ExtentBytes is what the slots of one extent take, unless less is left. Zero is
	// ExtentBytesFor(Bytes), or what the table that is there was made for if that
	// is more: such a table is taken over whatever extents it was made for.
	ExtentBytes uint64
	Disk        extent.DiskOptions
	Log         *zap.Logger
}

// arena is what host and disk arenas share: the directory, the locked table and
// the budget. Its methods are safe for concurrent use.
type arena struct {
	cfg     ArenaConfig
	kind    Kind
	table   *table
	madeDir bool
	fs      extent.FSInfo

	mu sync.Mutex
	// extents are those that exist or are being made, by their place in the table.
	extents map[uint32]holding
	// named are the directory indices handed out and not given back since. They
	// stay their namespaces' although these may have no extent left.
	named map[uint32]struct{}

	// used is how many bytes of the budget the slots of all extents take.
	used atomic.Uint64
	// left counts the extents that are leaving; see holding.
	left atomic.Int64
	// removed counts the extents of an earlier agent that were not taken over.
	removed atomic.Uint64
}

// holding is one extent of an arena.
type holding struct {
	sectionHead
	// unclaimed: an earlier agent made it and nobody has asked for it yet.
	unclaimed bool
	// leaving: nobody uses it any more, but its file could not be removed.
	leaving bool
}

const tableName = "slots.table"

// openArena makes the directory, opens the table and finds the extents of an
// earlier agent, whose table must be warm; others are unlinked.
func openArena(cfg ArenaConfig, kind Kind) (*arena, error) {
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
	t, err := openTable(filepath.Join(cfg.Dir, tableName), want, anySize, fs.Unit, cfg.Disk.Wrap)
	if err != nil {
		return nil, fmt.Errorf("%s directory %q: %w", kind, cfg.Dir, err)
	}
	cfg.ExtentBytes = max(cfg.ExtentBytes, t.header.extentBytes)
	a := &arena{cfg: cfg, kind: kind, table: t, madeDir: made, fs: fs, extents: map[uint32]holding{}, named: map[uint32]struct{}{}}
	if err := a.takeOver(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s directory %q: %w", kind, cfg.Dir, err), t.close())
	}
	return a, nil
}

// takeOver takes over the extents whose sections are good, as far as the budget
// goes, and unlinks everything else that an agent left.
func (a *arena) takeOver() error {
	files, err := extentFiles(a.cfg.Dir)
	if err != nil {
		return err
	}
	next := a.table.header.nextExtent
	for _, f := range files {
		next = max(next, uint64(f.id)+1)
	}
	if next == 0 {
		// Clients of an arena that was removed may still know its ids. Where to
		// start is a guess that hardly ever meets them.
		next = 1 + rand.Uint64N(1<<30)
	}
	if !a.table.warm {
		if err := a.table.reset(next); err != nil {
			return err
		}
		if a.table.why == nil {
			return a.removeFiles(files, errors.New("its slot table is gone"))
		}
		a.cfg.Log.Warn("slot table is made anew, stored blocks are forgotten and their extents removed",
			zap.Stringer("tier", a.kind), zap.String("table", a.table.path), zap.String("old_table", a.table.aside),
			zap.Int("extents", len(files)), zap.Error(a.table.why))
		return a.unlinkFiles(files)
	}
	if m := a.table.migrated; m != (migrated{}) {
		a.cfg.Log.Info("slot table of an older version is migrated",
			zap.Stringer("tier", a.kind), zap.Int("extents", m.extents), zap.Int("slots", m.slots))
	}
	a.table.header.nextExtent = next
	return a.adopt(files)
}

// adopt enters the extents of a warm table, oldest first, until the budget is
// used. Those that processes of a session may still touch come before the others
// and are kept in any case.
func (a *arena) adopt(files []extentFile) error {
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
			a.extents[f.section] = holding{sectionHead: head, unclaimed: true}
			a.used.Add(head.bytes())
		}
	}
	for _, f := range files {
		head, ok := good[f]
		if _, held := a.extents[f.section]; !ok || held {
			continue
		}
		if a.used.Load()+head.bytes() > a.cfg.Bytes {
			beyond = append(beyond, f)
			continue
		}
		a.extents[f.section] = holding{sectionHead: head, unclaimed: true}
		a.used.Add(head.bytes())
	}
	return errors.Join(a.removeFiles(bad, firstBad), a.removeFiles(beyond, fmt.Errorf("%s size %d is used up", a.kind, a.cfg.Bytes)))
}

// inspect finds out what an extent file holds, from its section's first page.
func (a *arena) inspect(f extentFile) (sectionHead, error) {
	if !f.whole {
		return sectionHead{}, errors.New("it was never finished")
	}
	head, err := a.table.readSectionHead(f.section)
	if err != nil {
		return sectionHead{}, err
	}
	item, ok := a.table.item(head.namespace)
	if head.extent != f.id || !ok || head.slotBytes != item.slotBytes || head.slots == 0 || head.slots > a.table.stride {
		return sectionHead{}, fmt.Errorf("its section tells of extent %d, namespace %d, %d slots of %d bytes",
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
	if a.kind == KindHost {
		return extent.HostGeometry(h.slots, h.slotBytes, a.fs.Unit)
	}
	return extent.DiskGeometry(h.slots, h.slotBytes)
}

// path is the file of an extent.
func (a *arena) path(section, id uint32) string {
	return filepath.Join(a.cfg.Dir, extentFile{section: section, id: id, whole: true}.name())
}

// removeFiles unlinks extent files that nobody will use again, why being true of
// the first of them at least. Whoever still maps one keeps its memory.
func (a *arena) removeFiles(files []extentFile, why error) error {
	if len(files) == 0 {
		return nil
	}
	a.cfg.Log.Warn("extents of an earlier agent are removed", zap.Stringer("tier", a.kind), zap.String("dir", a.cfg.Dir),
		zap.Int("extents", len(files)), zap.String("first", files[0].name()), zap.NamedError("why", why))
	return a.unlinkFiles(files)
}

// unlinkFiles is removeFiles for a caller that has logged why.
func (a *arena) unlinkFiles(files []extentFile) error {
	a.removed.Add(uint64(len(files)))
	var errs []error
	for _, f := range files {
		errs = append(errs, unlink(filepath.Join(a.cfg.Dir, f.name())))
	}
	return errors.Join(errs...)
}

// unlink removes a file that may be gone already.
func unlink(path string) error {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// hasSessions reports whether processes of the namespace may still touch its
// extents. Nobody but the agent touches a disk extent.
func (a *arena) hasSessions(ns uint32) bool {
	item, ok := a.table.item(ns)
	return ok && a.table.sessions != nil && a.table.sessions.serves(item.id)
}

// holding is the extent at a place of the table.
func (a *arena) holding(section uint32) holding {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.extents[section]
}

// all is a copy of what the arena holds, by place in the table.
func (a *arena) all() map[uint32]holding {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.extents)
}
