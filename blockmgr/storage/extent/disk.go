package extent

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// DiskOptions are how disk files are opened. The zero value is the default.
type DiskOptions struct {
	// Direct says whether extents bypass the page cache with O_DIRECT.
	Direct DirectIOMode
	// OpenDirect passes O_DIRECT to open(2) instead of setting it afterwards. Some file
	// systems (IBM Storage Scale) need that.
	OpenDirect bool
	// ZeroFill writes zeros where the file system cannot reserve space. A full disk then
	// shows when an extent is made and not when a block is stored.
	ZeroFill bool
	// Cipher encrypts the slots of one extent; nil for none. With one the geometry has SealBytes.
	Cipher Cipher
	// Wrap puts another File in front of each file that is opened; path is the file's
	// name at that moment. Nil for none.
	Wrap func(path string, f File) File
}

func (o DiskOptions) wrap(path string, f File) File {
	if o.Wrap == nil {
		return f
	}
	return o.Wrap(path, f)
}

// Disk is one preallocated file of slots. Reads and writes of different slots may run
// concurrently, and Sync with them; Close comes after all of them.
type Disk struct {
	geo  Geometry
	path string
	// file is raw, wrapped by DiskOptions.Wrap.
	file File
	raw  *osFile
	// refusal says why O_DIRECT is not used although DiskOptions ask for it.
	refusal string
	// cipher is DiskOptions.Cipher.
	cipher Cipher
}

// CreateDisk makes the file anew and reserves its space. After an error there is no file.
func CreateDisk(path string, geo Geometry, o DiskOptions) (*Disk, error) {
	d, err := openDisk(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, geo, o)
	if err == nil {
		if err = d.file.Allocate(int64(geo.FileBytes())); err == nil {
			return d, nil
		}
		err = errors.Join(fmt.Errorf("disk extent %s: allocate %d bytes: %w", path, geo.FileBytes(), err), d.file.Close())
	}
	if gone := os.Remove(path); gone != nil && !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return nil, err
}

// OpenDisk opens a file that CreateDisk made earlier. A file of
// another size is refused.
func OpenDisk(path string, geo Geometry, o DiskOptions) (*Disk, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("disk extent %s: %w", path, err)
	}
	if uint64(st.Size) != geo.FileBytes() {
		return nil, fmt.Errorf("disk extent %s: %d bytes, want %d", path, st.Size, geo.FileBytes())
	}
	d, err := openDisk(path, os.O_RDWR, geo, o)
	if err != nil {
		return nil, err
	}
	d.raw.sparse = st.Blocks*statBlock < st.Size // CreateDisk could not reserve the space
	return d, nil
}

// openDisk opens a file with the given open(2) flags and o, without a look at its size.
func openDisk(path string, flag int, geo Geometry, o DiskOptions) (*Disk, error) {
	f, refusal, err := openExtentFile(path, flag, o)
	if err != nil {
		return nil, fmt.Errorf("disk extent: %w", err)
	}
	raw := &osFile{f: f, zeroFill: o.ZeroFill}
	return &Disk{geo: geo, path: path, file: o.wrap(path, raw), raw: raw, refusal: refusal, cipher: o.Cipher}, nil
}

// Geometry returns the layout of the slots in the file.
func (d *Disk) Geometry() Geometry { return d.geo }

// Path returns the extent's file.
func (d *Disk) Path() string { return d.path }

// DirectRefusal says in one line why the page cache is not bypassed although
// DiskOptions ask for that; empty when it is bypassed, or was not asked for.
func (d *Disk) DirectRefusal() string { return d.refusal }

// ZeroFilled returns how many bytes of zeros CreateDisk wrote to reserve the space.
func (d *Disk) ZeroFilled() uint64 { return d.raw.zeros }

// Sparse reports whether the file system reserved less than the whole file. Then a
// write may find the disk full.
func (d *Disk) Sparse() bool { return d.raw.sparse }

// ReadSlot fills p, a whole slot of page-aligned memory, from slot i, which was written for life.
// The caller checks whether the bytes are the right ones: without a cipher any may be there, with
// one others are ErrForged. ErrMemory means that p is to blame, not the disk.
func (d *Disk) ReadSlot(i uint32, p []byte, life Life) error {
	f, err := d.Fetch(i, p)
	if err != nil {
		return err
	}
	return f.Open(p, life)
}

// Fetch is the part of ReadSlot that waits for the disk. The caller then calls Open, which computes.
func (d *Disk) Fetch(i uint32, p []byte) (Fetched, error) {
	if err := d.check(i, p); err != nil {
		return Fetched{}, err
	}
	var f Fetched
	into := p
	if d.cipher != nil {
		into = sealedBuffer(d.geo.Stride())
		f = Fetched{disk: d, slot: i, sealed: into}
	}
	n, err := d.file.ReadAt(into, d.geo.Offset(i))
	if err == nil && n != len(into) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		if d.cipher != nil {
			releaseSealed(into)
		}
		return Fetched{}, fmt.Errorf("read slot %d of %s: %d of %d bytes: %w", i, d.path, n, len(into), blameMemory(err))
	}
	return f, nil
}

// WriteSlot writes p, a whole slot of page-aligned memory, to slot i for one life of the slot.
// ErrMemory means that p is to blame, not the disk.
func (d *Disk) WriteSlot(i uint32, p []byte, life Life) error {
	if err := d.check(i, p); err != nil {
		return err
	}
	if d.cipher != nil {
		sealed := sealedBuffer(d.geo.Stride())
		defer releaseSealed(sealed)
		if err := Guard(func() { d.cipher.Seal(sealed, p, i, life) }); err != nil {
			return fmt.Errorf("write slot %d of %s: %w", i, d.path, err)
		}
		p = sealed
	}
	return d.write(i, p)
}

// EraseSlot writes zeros over slot i.
func (d *Disk) EraseSlot(i uint32) error {
	zeros, free, err := NewBuffer(d.geo.Stride())
	if err != nil {
		return err
	}
	defer free()
	return d.write(i, zeros)
}

// write writes p at the offset of slot i.
func (d *Disk) write(i uint32, p []byte) error {
	n, err := d.file.WriteAt(p, d.geo.Offset(i))
	if err == nil && n != len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("write slot %d of %s: %d of %d bytes: %w", i, d.path, n, len(p), blameMemory(err))
	}
	return nil
}

// check returns an error unless slot i exists and p has the size of a slot.
func (d *Disk) check(i uint32, p []byte) error {
	if i >= d.geo.Slots {
		return fmt.Errorf("slot %d of %s: want 0 to %d", i, d.path, d.geo.Slots-1)
	}
	if uint64(len(p)) != d.geo.SlotBytes {
		return fmt.Errorf("slot %d of %s: buffer of %d bytes, want %d", i, d.path, len(p), d.geo.SlotBytes)
	}
	return nil
}

// Sync returns when all slots written before are on stable storage.
func (d *Disk) Sync() error {
	if err := d.file.Sync(); err != nil {
		return fmt.Errorf("disk extent %s: %w", d.path, err)
	}
	return nil
}

// Close closes the file and leaves it where it is.
func (d *Disk) Close() error { return d.file.Close() }
