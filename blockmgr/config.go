package blockmgr

import (
	"fmt"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// DirectIOMode says whether disk extents bypass the page cache.
type DirectIOMode = storage.DirectIOMode

const (
	// DirectIOAuto uses O_DIRECT where a probe shows that it works.
	DirectIOAuto = storage.DirectIOAuto
	// DirectIOOff never uses O_DIRECT.
	DirectIOOff = storage.DirectIOOff
	// DirectIORequire fails where O_DIRECT does not work.
	DirectIORequire = storage.DirectIORequire
)

const (
	// DefaultExtentBytes is Config.ExtentBytes when it is zero.
	DefaultExtentBytes = 64 << 20
	// MaxExtentBytes is the largest Config.ExtentBytes.
	MaxExtentBytes = storage.MaxExtentBytes
	// minExtentBytes holds one page of generation words and one slot.
	minExtentBytes = 8 << 10
	// DefaultMaxPinsPerSession is Config.MaxPinsPerSession when it is zero.
	DefaultMaxPinsPerSession = 65536
	// maxExtents bounds the extents of a tier: each is an open file.
	maxExtents = 1 << 18
	// stagingSlots is what a staging arena holds at least; see Config.HostBytes.
	stagingSlots = 64
)

// Config says where blocks live and how many. The zero value is a manager that
// is off: lookups find nothing and nothing is granted.
type Config struct {
	// HostDir is the directory of the host extents; it should be on tmpfs or
	// hugetlbfs. It is made when absent. Needed whenever a tier is configured.
	HostDir string
	// HostBytes is the size of the host tier. Zero with a disk tier bypasses the
	// host: blocks only pass through a staging extent of ExtentBytes, or of 64
	// slots if that is more, for each namespace.
	HostBytes uint64
	// DiskDir is the directory of the disk extents and of their slot table. It is
	// made when absent. Needed when DiskBytes is set.
	DiskDir string
	// DiskBytes is the size of the disk tier; zero is none.
	DiskBytes uint64
	// ExtentBytes is how much a pool grows by, default 64 MiB, at most 1 GiB. A
	// tier smaller than one extent has one extent of its own size; an extent is
	// never smaller than one slot. Each extent is an open file, of which a process
	// may have so many: terabytes want larger extents.
	ExtentBytes uint64
	// MaxPinsPerSession bounds the pins of one session, default 65536. Lookup
	// does not report blocks beyond it.
	MaxPinsPerSession int
	// DirectIO says whether disk extents are opened with O_DIRECT.
	DirectIO DirectIOMode
	// Sink is told of every change of residency; nil for nobody.
	Sink EventSink
	// Log is where warnings go; nil for nowhere.
	Log *zap.Logger

	// wrapFile, in tests, puts faults between the manager and its disk files.
	wrapFile func(storage.File) storage.File
}

// Validate checks every field's range; the error names the first bad one.
func (c *Config) Validate() error {
	if c.ExtentBytes != 0 && (c.ExtentBytes < minExtentBytes || c.ExtentBytes > MaxExtentBytes) {
		return fmt.Errorf("extent size %d: want %d to %d bytes", c.ExtentBytes, minExtentBytes, MaxExtentBytes)
	}
	if c.HostBytes != 0 && c.HostBytes < minExtentBytes {
		return fmt.Errorf("host size %d: want 0 or at least %d bytes", c.HostBytes, minExtentBytes)
	}
	if c.DiskBytes != 0 && c.DiskBytes < minExtentBytes {
		return fmt.Errorf("disk size %d: want 0 or at least %d bytes", c.DiskBytes, minExtentBytes)
	}
	if n := max(c.HostBytes, c.DiskBytes) / c.withDefaults().ExtentBytes; n > maxExtents {
		return fmt.Errorf("extent size %d: makes %d extents, want at most %d", c.withDefaults().ExtentBytes, n, maxExtents)
	}
	if c.enabled() && c.HostDir == "" {
		return fmt.Errorf("host directory %q: must be set when the host or disk size is not 0", c.HostDir)
	}
	if c.DiskBytes != 0 && c.DiskDir == "" {
		return fmt.Errorf("disk directory %q: must be set when the disk size is not 0", c.DiskDir)
	}
	if c.DiskBytes != 0 && filepath.Clean(c.HostDir) == filepath.Clean(c.DiskDir) {
		return fmt.Errorf("disk directory %q: must not be the host directory", c.DiskDir)
	}
	if c.MaxPinsPerSession < 0 {
		return fmt.Errorf("pins per session %d: want 0 (default %d) or more", c.MaxPinsPerSession, DefaultMaxPinsPerSession)
	}
	return c.DirectIO.Validate()
}

func (c *Config) enabled() bool { return c.HostBytes != 0 || c.DiskBytes != 0 }

// withDefaults is c with zero fields replaced by their defaults.
func (c Config) withDefaults() Config {
	if c.ExtentBytes == 0 {
		c.ExtentBytes = DefaultExtentBytes
	}
	if c.MaxPinsPerSession == 0 {
		c.MaxPinsPerSession = DefaultMaxPinsPerSession
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.wrapFile == nil {
		c.wrapFile = func(f storage.File) storage.File { return f }
	}
	return c
}
