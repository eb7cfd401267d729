package engineevent

import (
	"bytes"

	"github.com/zeebo/xxh3"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// saltPrefix marks a cache salt among the extra keys of an event.
const saltPrefix = "dynamo-cache-salt:"

// readExtraKeys reads the engine's other inputs of its block hashes: one entry per
// block, nil or a list of keys. vLLM lists the adapter's name, an identifier with
// its offset for each multimodal object, the cache salt in the first block of a
// sequence, and the digest of prompt embeddings.
//
// Every key ends up in the block's name: as the adapter, as the salt, or as one of
// the block's objects. A key that were left out would give different contents one
// name.
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
		adapterSeen := f.ev.LoRAName == ""
		for range c.Array() {
			if c.Null() {
				continue
			}
			if c.Peek() != msgpack.Text {
				f.objectKey(c)
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

// isSalt reports whether a text among the extra keys is the cache salt, and takes
// it. The salt has a prefix or stands in the first block of a sequence. A sequence
// has one salt; another text is an object.
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

// objectKey appends the object that an extra key other than a text stands for.
func (f *eventFields) objectKey(c *msgpack.Reader) {
	start := c.Offset()
	if id, offset, ok := identifier(c); ok {
		// vLLM's hashes may look ahead: such an object begins behind the block.
		if offset < int64(f.ev.BlockSize) || f.ev.BlockSize == 0 {
			f.mem.objects = append(f.mem.objects, ObjectHash(f.withoutAdapter(id)))
		}
		return
	}
	c.Rewind(start)
	if c.Peek() == msgpack.Bin {
		f.mem.objects = append(f.mem.objects, xxh3.HashSeed(c.Bin(), kv.HashSeed))
		return
	}
	c.Skip()
	f.mem.objects = append(f.mem.objects, xxh3.HashSeed(c.Since(start), kv.HashSeed))
	f.unknownKeys++
}

// identifier reads a pair of an object's identifier and its offset, in tokens from
// the start of the block; older engines send no offset.
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

// withoutAdapter returns an identifier without the adapter's name, which vLLM puts
// before it when the adapter changes the object's embeddings. The adapter is in
// every block's name already.
func (f *eventFields) withoutAdapter(id []byte) []byte {
	n := len(f.ev.LoRAName)
	if n > 0 && len(id) > n && string(id[:n]) == f.ev.LoRAName && id[n] == ':' {
		return id[n+1:]
	}
	return id
}
