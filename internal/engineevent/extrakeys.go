package engineevent

import (
	"bytes"

	"github.com/zeebo/xxh3"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// saltPrefix marks a cache salt among the extra keys of an event.
const saltPrefix = "dynamo-cache-salt:"

// readExtraKeys reads the engine's other inputs to its block hashes: for each block
// nil or a list of keys. vLLM lists the adapter's name, an identifier with its
// offset for each multimodal object, the cache salt in the first block of a
// sequence, and the digest of prompt embeddings.
//
// Every key becomes part of the block's name: as the adapter, the salt, or an
// object. If a key were ignored, blocks with different contents would have the same
// name. Objects are left out where the event lists them in its own field,
// f.ev.Multimodal: there they are part of the name already.
func (f *eventFields) readExtraKeys() error {
	if f.extraKeys == nil {
		return nil
	}
	c := msgpack.NewReader(f.extraKeys)
	wantObjects := f.ev.Multimodal == nil
	for block := range c.Array() {
		if c.Null() {
			continue
		}
		start := len(f.mem.objects)
		adapterSeen := f.ev.LoRAName == "" // the block's first text equal to LoRAName is the adapter
		for range c.Array() {
			if c.Null() {
				continue
			}
			if c.Peek() != msgpack.Text {
				f.objectKey(c) // appends to f.mem.objects
				continue
			}
			switch text := c.Text(); {
			case !adapterSeen && f.decoder.name(text) == f.ev.LoRAName:
				adapterSeen = true
			case !f.isSalt(text, block):
				f.mem.objects = append(f.mem.objects, ObjectHash(text))
			}
		}
		if c.Err != nil {
			return c.Err
		}
		if wantObjects {
			f.addObjects(block, start)
		} else {
			f.mem.objects = f.mem.objects[:start]
		}
	}
	return c.Err
}

// isSalt reports whether a text among the extra keys of block number block is the cache salt, and
// sets f.ev.Salt if it is. The salt has a prefix or is in the first block of a sequence. A
// sequence has one salt, and another text is an object.
func (f *eventFields) isSalt(text []byte, block int) bool {
	salt, prefixed := bytes.CutPrefix(text, []byte(saltPrefix))
	if !prefixed && (block > 0 || f.ev.HasParent) {
		return false
	}
	name := f.decoder.name(salt)
	if f.ev.Salt == "" {
		f.ev.Salt = name
	}
	return f.ev.Salt == name
}

// objectKey reads an extra key that is no text, and appends its object's hash to f.mem.objects: a
// multimodal object with its offset, the digest of prompt embeddings, or a key of an unknown kind.
func (f *eventFields) objectKey(c *msgpack.Reader) {
	start := c.Offset()
	if id, offset, ok := identifier(c); ok {
		// vLLM's hashes may look ahead. Such an object begins after the block.
		if offset < int64(f.ev.BlockSize) || f.ev.BlockSize == 0 {
			f.mem.objects = append(f.mem.objects, ObjectHash(f.withoutAdapter(id)))
		}
		return
	}
	c.Rewind(start)
	if c.Peek() == msgpack.Bin { // prompt embeddings
		f.mem.objects = append(f.mem.objects, xxh3.HashSeed(c.Bin(), kv.HashSeed))
		return
	}
	c.Skip()
	f.mem.objects = append(f.mem.objects, xxh3.HashSeed(c.Since(start), kv.HashSeed))
	f.unknownKeys++
}

// identifier reads an object's identifier and its offset, in tokens from the start of the block:
// an array of one or two elements. Older engines send no offset, which counts as 0. ok is false
// when the value has another form; the caller then rewinds.
func identifier(c *msgpack.Reader) (id []byte, offset int64, ok bool) {
	if c.Peek() != msgpack.Array {
		return nil, 0, false
	}
	n := c.Array()
	if n != 1 && n != 2 || c.Peek() != msgpack.Text {
		return nil, 0, false
	}
	id = c.Text()
	if n == 2 {
		if c.Peek() != msgpack.Int {
			return nil, 0, false
		}
		v, _ := c.Integer()
		offset = int64(v)
	}
	return id, offset, c.Err == nil
}

// withoutAdapter returns an identifier without the adapter's name. vLLM puts the
// name in front when the adapter changes the object's embeddings. The adapter is
// part of every block's name already.
func (f *eventFields) withoutAdapter(id []byte) []byte {
	n := len(f.ev.LoRAName)
	if n > 0 && len(id) > n && string(id[:n]) == f.ev.LoRAName && id[n] == ':' {
		return id[n+1:]
	}
	return id
}

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

// hexDigit returns the value of a hexadecimal digit in either case; false for another byte.
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

// readMMInfos decodes the value of block_mm_infos and sets f.ev.Multimodal, the objects' hashes by
// block. The value is a list with one entry per block: nil, or a map whose mm_objects are maps with
// an mm_hash each.
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

// readMMObject reads one map of mm_objects and appends its mm_hash to f.mem.objects.
func (f *eventFields) readMMObject(c *msgpack.Reader) {
	for range c.Map() {
		if string(c.Text()) == "mm_hash" {
			f.mem.objects = append(f.mem.objects, c.Uint64())
		} else {
			c.Skip()
		}
	}
}

// addObjects makes f.mem.objects[start:] the multimodal objects of block number block. For a block
// beyond the hashes of the event it drops them.
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
