package kvevent

import "bytes"

// saltPrefix marks a cache salt among the extra keys of an event.
const saltPrefix = "dynamo-cache-salt:"

// readExtraKeys reads what else went into the engine's hashes: one entry per
// block, nil or a list of the adapter's name, identifiers of multimodal objects
// (alone or paired with an offset) and, in the first block, the cache salt. The
// salt has a prefix, or is the first plain string at the start of a sequence
// that is neither the adapter nor an identifier, which is how vLLM writes it.
func (f *eventFields) readExtraKeys() error {
	if f.extraKeys == nil {
		return nil
	}
	c := cursor{buf: f.extraKeys}
	wantObjects := f.ev.Multimodal == nil
	explicitSalt := f.ev.Salt != ""
	for block := range c.array() {
		if c.null() {
			continue
		}
		start := len(f.mem.objects)
		adapterSeen := f.ev.LoRAName == ""
		for range c.array() {
			item, paired := extraKey(&c)
			if !adapterSeen && !paired && string(item) == f.ev.LoRAName {
				adapterSeen = true
				continue
			}
			if hash, ok := MultimodalHash(item); ok {
				f.mem.objects = append(f.mem.objects, hash)
			} else if block == 0 && !paired && !explicitSalt {
				f.saltFrom(item)
			}
		}
		if c.err != nil {
			return c.err
		}
		if wantObjects {
			f.addObjects(block, start)
		} else {
			f.mem.objects = f.mem.objects[:start]
		}
	}
	return c.err
}

// extraKey reads one extra key; what is no string, or no pair that begins with
// one, comes back empty.
func extraKey(c *cursor) (item []byte, paired bool) {
	switch c.peek() {
	case wireText:
		return c.text(), false
	case wireArray:
		n := c.array()
		if n == 0 {
			return nil, true
		}
		if c.peek() == wireText {
			item = c.text()
		} else {
			c.skip()
		}
		for range n - 1 {
			c.skip()
		}
		return item, true
	}
	c.skip()
	return nil, false
}

// saltFrom takes the salt from an extra key of the first block, if it is one.
func (f *eventFields) saltFrom(item []byte) {
	if rest, ok := bytes.CutPrefix(item, []byte(saltPrefix)); ok {
		item = rest
	} else if f.ev.HasParent {
		return
	}
	if f.ev.Salt == "" {
		f.ev.Salt = f.decoder.strings.get(item)
	}
}
