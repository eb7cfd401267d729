package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// copyRequest asks a copier for a round of copies. The copier answers with a copyReply
// when it is ready, waits for one more JSON value, and answers again after every block.
type copyRequest struct {
	// Block is the size of a block, Count the number of blocks.
	Block uint64 `json:"block"`
	Count int    `json:"count"`
	// Targets are the destinations of the blocks. Without targets they go to the
	// copier's own memory.
	Targets []copyTarget `json:"targets,omitempty"`
}

// copyTarget is a place in a file that the copier maps.
type copyTarget struct {
	Path   string `json:"path"`
	Offset uint64 `json:"offset"`
}

// copyReply has the number of copied blocks and the time on the copier's clock.
type copyReply struct {
	Done    int           `json:"done"`
	Elapsed time.Duration `json:"elapsed"`
}

// copier stands for an engine: it copies from its own buffer to the targets of
// requests.
type copier struct {
	source, private []byte
	files           map[string][]byte
}

// ServeCopies carries out the requests to copy that it reads from r, and writes its answers to w,
// until r ends. It is the main function of Options.Copier, a process that stands for an engine.
func ServeCopies(r io.Reader, w io.Writer) (err error) {
	c := &copier{files: map[string][]byte{}}
	defer func() { err = errors.Join(err, c.close()) }()
	in, out := json.NewDecoder(r), json.NewEncoder(w)
	for {
		var req copyRequest
		switch err := in.Decode(&req); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("copier's request: %w", err)
		}
		targets, err := c.prepare(&req)
		if err != nil {
			return err
		}
		if err := out.Encode(copyReply{}); err != nil {
			return fmt.Errorf("copier's answer: %w", err)
		}
		// The measurement begins only when the memory is in place.
		var start any
		if err := in.Decode(&start); err != nil {
			return fmt.Errorf("copier's start: %w", err)
		}
		if err := c.copy(targets, req.Block, out); err != nil {
			return err
		}
	}
}

// prepare returns the memory that each block is copied to, with all pages in place: the targets
// of the request, or private memory without any.
func (c *copier) prepare(req *copyRequest) ([][]byte, error) {
	total := req.Block * uint64(req.Count)
	if req.Count < 1 || req.Block < 8 || total > maxRoundBytes {
		return nil, fmt.Errorf("copier: %d blocks of %d bytes: want 1 or more, at most %d bytes", req.Count, req.Block, maxRoundBytes)
	}
	if len(req.Targets) != 0 && len(req.Targets) != req.Count {
		return nil, fmt.Errorf("copier: %d targets: want none or %d", len(req.Targets), req.Count)
	}
	if err := enlarge(&c.source, total); err != nil {
		return nil, err
	}
	targets := make([][]byte, req.Count)
	if len(req.Targets) == 0 {
		if err := enlarge(&c.private, total); err != nil {
			return nil, err
		}
		for i := range targets {
			targets[i] = c.private[uint64(i)*req.Block:][:req.Block]
		}
		return targets, nil
	}
	for i, t := range req.Targets {
		mem, err := c.file(t.Path)
		if err != nil {
			return nil, err
		}
		if size := uint64(len(mem)); t.Offset > size || size-t.Offset < req.Block {
			return nil, fmt.Errorf("copier: offset %d of %s: want at most %d", t.Offset, t.Path, size-min(size, req.Block))
		}
		targets[i] = mem[t.Offset:][:req.Block]
	}
	return targets, nil
}

// file returns the memory of a mapped file. It maps a file once and keeps the mapping until close.
func (c *copier) file(path string) ([]byte, error) {
	if mem, ok := c.files[path]; ok {
		return mem, nil
	}
	mem, err := mapFile(path)
	if err != nil {
		return nil, fmt.Errorf("copier: %w", err)
	}
	c.files[path] = mem
	return mem, nil
}

// copy copies a block of that many bytes to each target, and writes an answer after each with the
// time since the start.
func (c *copier) copy(targets [][]byte, block uint64, out *json.Encoder) error {
	start := time.Now()
	for i, to := range targets {
		memcpy(to, c.source[uint64(i)*block:][:block])
		if err := out.Encode(copyReply{Done: i + 1, Elapsed: time.Since(start)}); err != nil {
			return fmt.Errorf("copier's answer: %w", err)
		}
	}
	return nil
}

// enlarge replaces *buf by at least size bytes of memory whose pages are in place, unless it is
// that large already.
func enlarge(buf *[]byte, size uint64) error {
	if uint64(len(*buf)) >= size {
		return nil
	}
	if *buf != nil {
		if err := unix.Munmap(*buf); err != nil {
			return fmt.Errorf("copier: %w", err)
		}
		*buf = nil
	}
	mem, err := mapMemory(size)
	if err != nil {
		return fmt.Errorf("copier: %w", err)
	}
	*buf = mem
	return nil
}

// close unmaps all memory.
func (c *copier) close() error {
	var errs []error
	for _, mem := range c.files {
		errs = append(errs, unix.Munmap(mem))
	}
	for _, mem := range [][]byte{c.source, c.private} {
		if mem != nil {
			errs = append(errs, unix.Munmap(mem))
		}
	}
	return errors.Join(errs...)
}

// mapping is a pool's host extents as an engine maps them.
type mapping struct {
	extents map[uint32]mappedExtent
}

type mappedExtent struct {
	info blockmgr.ExtentInfo
	mem  []byte
}

// mapPool maps all extents (files of slots) of a pool, as an engine does. The caller closes the
// mapping.
func mapPool(p *blockmgr.Pool) (*mapping, error) {
	m := &mapping{map[uint32]mappedExtent{}}
	for _, info := range p.Extents() {
		mem, err := mapFile(info.Path)
		if err != nil {
			return nil, errors.Join(err, m.close())
		}
		m.extents[info.ID] = mappedExtent{info, mem}
	}
	return m, nil
}

// offset returns where a slot lies in its extent's file.
func (e *mappedExtent) offset(index uint32) uint64 {
	return e.info.DataOffset + uint64(index)*e.info.SlotBytes
}

// slot returns the first n bytes of a slot. The error is that the extent is younger
// than the mapping.
func (m *mapping) slot(s blockmgr.Slot, n uint64) ([]byte, error) {
	e, ok := m.extents[s.Extent]
	if !ok {
		return nil, fmt.Errorf("extent %d: not mapped", s.Extent)
	}
	return e.mem[e.offset(s.Index):][:n], nil
}

func (m *mapping) close() error {
	var errs []error
	for _, e := range m.extents {
		errs = append(errs, unix.Munmap(e.mem))
	}
	return errors.Join(errs...)
}

// mapFile returns the memory of a whole file, mapped shared and with every page in place. The
// caller unmaps it.
func mapFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of %s: %w", st.Size(), path, err)
	}
	return mem, nil
}

// mapMemory returns private memory of random bytes, aligned to pages, in huge pages
// where possible. The caller unmaps it.
func mapMemory(size uint64) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", size, err)
	}
	// Without huge pages it is memory all the same.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	fillRandom(mem, size)
	return mem, nil
}
