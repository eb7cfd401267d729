package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// ArenaConfig describes one arena: a directory with a slot table and extents.
type ArenaConfig struct {
	// Dir is made when absent.
	Dir string
	// Bytes is the budget of all extents; it is used in steps of ExtentBytes.
	Bytes       uint64
	ExtentBytes uint64
	Disk        DiskOptions
	Log         *zap.Logger
}

// arena is what host and disk arenas share: the directory, the locked table and
// the budget. Its methods are safe for concurrent use.
type arena struct {
	cfg     ArenaConfig
	kind    Kind
	table   *table
	madeDir bool
	fs      FSInfo

	mu sync.Mutex
	// extents maps the id of each extent that exists to what it takes from the
	// budget and whom it belongs to.
	extents map[uint32]holding
	// named are the directory indices handed out since the arena was opened. They
	// stay their namespaces' although these may have no extent left.
	named map[uint32]struct{}
}

type holding struct {
	bytes uint64
	ns    uint32
}

const (
	tableName    = "slots.table"
	extentPrefix = "extent-"
)

// openArena makes the directory, opens the table and reports whether its
// records can be used again.
func openArena(cfg ArenaConfig, kind Kind) (a *arena, reused bool, err error) {
	_, err = os.Stat(cfg.Dir)
	made := errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, false, fmt.Errorf("%s directory %q: %w", kind, cfg.Dir, err)
	}
	fs, err := StatFS(cfg.Dir)
	if err != nil {
		return nil, false, fmt.Errorf("%s directory %q: %w", kind, cfg.Dir, err)
	}
	want := header{kind: kind, extentBytes: cfg.ExtentBytes, bootID: readBootID()}
	perUnit := fs.Unit / RecordSize
	want.stride = uint32(roundUp(max(cfg.ExtentBytes/PageSize, 64), perUnit))
	t, reused, why, err := openTable(filepath.Join(cfg.Dir, tableName), want, fs.Unit, cfg.Disk.wrap)
	if err != nil {
		return nil, false, fmt.Errorf("%s directory %q: %w", kind, cfg.Dir, err)
	}
	if why != nil {
		cfg.Log.Warn("slot table is made anew, stored blocks are forgotten",
			zap.Stringer("tier", kind), zap.String("table", t.path), zap.Error(why))
	}
	return &arena{cfg: cfg, kind: kind, table: t, madeDir: made, fs: fs, extents: map[uint32]holding{}, named: map[uint32]struct{}{}}, reused, nil
}

// namespace is the directory index of a namespace.
func (a *arena) namespace(id kv.NamespaceID, slotBytes uint64) (uint32, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	index, err := a.table.namespace(id, slotBytes, func(i uint32) bool {
		if _, ok := a.named[i]; ok {
			return true
		}
		for _, h := range a.extents {
			if h.ns == i {
				return true
			}
		}
		return false
	})
	if err == nil {
		a.named[index] = struct{}{}
	}
	return index, err
}

// reserve takes an extent's bytes out of the budget: ExtentBytes, or least when
// that is more, or what is left when that is less but at least least. On
// hugetlbfs all of them are whole huge pages, as the files are. ErrFull means
// that dropping other extents would help.
func (a *arena) reserve(ns uint32, least uint64) (id uint32, bytes uint64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var used uint64
	for _, h := range a.extents {
		used += h.bytes
	}
	least = roundUp(least, a.fs.Unit)
	if least > a.cfg.Bytes {
		return 0, 0, fmt.Errorf("%s size %d: too small, one extent needs at least %d bytes", a.kind, a.cfg.Bytes, least)
	}
	left := a.cfg.Bytes - min(used, a.cfg.Bytes)
	left -= left % a.fs.Unit
	bytes = min(max(a.cfg.ExtentBytes-a.cfg.ExtentBytes%a.fs.Unit, least), left)
	if bytes < least {
		return 0, 0, fmt.Errorf("%s size %d: %w: %d bytes are left, one extent needs at least %d", a.kind, a.cfg.Bytes, ErrFull, left, least)
	}
	if bytes > MaxExtentBytes {
		return 0, 0, fmt.Errorf("%s extent of %d bytes: want at most %d", a.kind, bytes, MaxExtentBytes)
	}
	for {
		if _, taken := a.extents[id]; !taken {
			break
		}
		id++
	}
	a.extents[id] = holding{bytes, ns}
	return id, bytes, nil
}

// release gives an extent's bytes back to the budget.
func (a *arena) release(id uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.extents, id)
}

func (a *arena) extentPath(id uint32) string {
	return filepath.Join(a.cfg.Dir, fmt.Sprintf("%s%08x", extentPrefix, id))
}

// extentFiles are the ids of the extent files in the directory, ascending.
func (a *arena) extentFiles() ([]uint32, error) {
	entries, err := os.ReadDir(a.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("%s directory: %w", a.kind, err)
	}
	var ids []uint32
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), extentPrefix)
		id, err := strconv.ParseUint(digits, 16, 32)
		if ok && err == nil && len(digits) == 8 {
			ids = append(ids, uint32(id))
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// removeExtents unlinks extent files that nobody will use again.
func (a *arena) removeExtents(ids []uint32) error {
	var errs []error
	for _, id := range ids {
		if err := os.Remove(a.extentPath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
