package engineevent

import (
	"github.com/zeebo/xxh3"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// ObjectHash returns the 64-bit hash of the multimodal object with an identifier:
// the first sixteen of its sixty-four hexadecimal digits. The hash of any other
// identifier is XXH3-64, seed 1337, of its bytes.
func ObjectHash[T ~string | ~[]byte](id T) uint64 {
	if len(id) != 64 {
		return xxh3.HashSeed([]byte(id), kv.HashSeed)
	}
	var v uint64
	for i := range len(id) {
		d, ok := hexDigit(id[i])
		if !ok {
			return xxh3.HashSeed([]byte(id), kv.HashSeed)
		}
		if i < 16 {
			v = v<<4 | d
		}
	}
	return v
}

func hexDigit(b byte) (uint64, bool) {
	switch {
	case b >= '0' && b <= '9':
		return uint64(b - '0'), true
	case b >= 'a' && b <= 'f':
		return uint64(b-'a') + 10, true
	case b >= 'A' && b <= 'F':
		return uint64(b-'A') + 10, true
	}
	return 0, false
}

// readMMInfos reads a list with one entry per block: nil, or a map whose
// mm_objects are maps with an mm_hash each.
func (f *eventFields) readMMInfos() error {
	if f.mmInfos == nil {
		return nil
	}
	c := msgpack.NewReader(f.mmInfos)
	for block := range c.Array() {
		if c.Null() {
			continue
		}
		start := len(f.mem.objects)
		for range c.Map() {
			if string(c.Text()) != "mm_objects" || c.Peek() == msgpack.Nil {
				c.Skip()
				continue
			}
			for range c.Array() {
				f.readMMObject(c)
			}
		}
		if c.Err != nil {
			return c.Err
		}
		f.addObjects(block, start)
	}
	return c.Err
}

func (f *eventFields) readMMObject(c *msgpack.Reader) {
	for range c.Map() {
		if string(c.Text()) == "mm_hash" {
			f.mem.objects = append(f.mem.objects, c.Uint64())
		} else {
			c.Skip()
		}
	}
}

// addObjects makes what was appended to the objects since start those of one
// block of the event. A block that the event does not name has none.
func (f *eventFields) addObjects(block, start int) {
	objects := f.mem.objects[start:len(f.mem.objects):len(f.mem.objects)]
	if len(objects) == 0 || block >= len(f.ev.BlockHashes) {
		f.mem.objects = f.mem.objects[:start]
		return
	}
	if f.ev.Multimodal == nil {
		row := len(f.mem.rows)
		for range f.ev.BlockHashes {
			f.mem.rows = append(f.mem.rows, nil)
		}
		f.ev.Multimodal = f.mem.rows[row:len(f.mem.rows):len(f.mem.rows)]
	}
	f.ev.Multimodal[block] = objects
}
