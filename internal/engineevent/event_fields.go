package engineevent

import (
	"fmt"
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// eventFields collects the fields of one engine event, which may come in any order.
// Extra keys and multimodal infos are only located at first, because their meaning
// depends on other fields.
type eventFields struct {
	decoder *Decoder
	c       *msgpack.Reader
	mem     *batchMemory
	ev      Event
	ignored bool
	// unknownKeys counts extra keys of an unknown kind.
	unknownKeys int
	// extraKeys and mmInfos are the encoded values, nil when absent.
	extraKeys, mmInfos []byte
}

// tag reads the event's type into f.ev.Kind, or sets f.ignored for a type without meaning for the
// cache. The error is ErrUnknownTag for any other type.
func (f *eventFields) tag() error {
	switch tag := f.c.Text(); string(tag) {
	case tagStored:
		f.ev.Kind = kvevent.Stored
	case tagRemoved:
		f.ev.Kind = kvevent.Removed
	case tagCleared:
		f.ev.Kind = kvevent.Cleared
	case tagIgnored:
		f.ignored = true
	default:
		if f.c.Err == nil {
			return fmt.Errorf("%w %.64q", ErrUnknownTag, tag)
		}
	}
	return fieldError("type", f.c.Err)
}

// readMap reads an event in the form {"type": tag, field: value, …} into f. The type may come after
// other fields, but must be there.
func (f *eventFields) readMap() error {
	typed := false
	for range f.c.Map() {
		key := f.c.Text()
		if string(key) == "type" {
			typed = true
			if err := f.tag(); err != nil {
				return err
			}
			continue
		}
		if f.ignored { // known only once the type has come
			f.c.Skip()
		} else {
			f.field(key)
		}
		if f.c.Err != nil {
			return fmt.Errorf("%.64q: %w", key, f.c.Err)
		}
	}
	if f.c.Err == nil && !typed {
		f.c.Fail("event without type")
	}
	return f.c.Err
}

// field reads the value of the key of an event in the form of a map, into f. Unknown keys are
// skipped.
func (f *eventFields) field(key []byte) {
	switch string(key) {
	case "block_hashes":
		f.hashes()
	case "parent_block_hash":
		f.parent()
	case "token_ids":
		f.tokens()
	case "block_size":
		f.ev.BlockSize = f.optionalUint32()
	case "medium":
		f.ev.Medium = f.optionalText()
	case "lora_id":
		f.loraID()
	case "lora_name":
		f.ev.LoRAName = f.optionalName()
	case "cache_salt":
		f.ev.Salt = f.optionalName()
	case "extra_keys":
		f.extraKeys = f.located()
	case "block_mm_infos":
		f.mmInfos = f.located()
	case "group_idx":
		f.group()
	case "kv_cache_spec_kind":
		f.ev.SpecKind = f.optionalText()
	case "kv_cache_spec_sliding_window":
		f.ev.SlidingWindow = f.optionalUint32()
	case "locality":
		f.ev.Locality = f.optionalText()
	case "ownership":
		f.ev.Ownership = f.optionalText()
	default:
		f.c.Skip()
	}
}

// readArray reads a positional event:
//
//	BlockStored       hashes, parent, tokens, block size, LoRA id, medium, LoRA name, extra keys, suffix
//	BlockRemoved      hashes, medium, suffix
//	AllBlocksCleared  ownership
//
// Engines have appended fields over time. A stored event may end after any field
// from the block size on, a removed one after any field from the hashes on.
func (f *eventFields) readArray() error {
	n := f.c.Array()
	if f.c.Err != nil {
		return f.c.Err
	}
	if n == 0 {
		return fmt.Errorf("byte %d: event without type", f.c.Offset())
	}
	if err := f.tag(); err != nil {
		return err
	}
	n--
	if least := leastFields(f.ev.Kind); n < least {
		return fmt.Errorf("%s event of %d fields, want at least %d", f.ev.Kind, n, least)
	}
	for i := 0; i < n && f.c.Err == nil; i++ {
		var last bool
		switch f.ev.Kind {
		case kvevent.Stored:
			last = f.storedField(i, n)
		case kvevent.Removed:
			last = f.removedField(i, n)
		case kvevent.Cleared:
			f.clearedField(i)
		default:
			f.c.Skip()
		}
		if f.c.Err != nil {
			return fmt.Errorf("field %d: %w", i+1, f.c.Err)
		}
		if last {
			break
		}
	}
	return f.c.Err
}

// leastFields returns the least number of fields that a positional event of kind k has after its
// tag: those that all engine versions send.
func leastFields(k kvevent.Kind) int {
	switch k {
	case kvevent.Stored:
		return 4
	case kvevent.Removed:
		return 1
	}
	return 0
}

// storedField reads field i, from 0, of the n fields that a positional BlockStored has after its
// tag. It returns true when it has read all remaining fields too.
func (f *eventFields) storedField(i, n int) bool {
	switch i {
	case 0:
		f.hashes()
	case 1:
		f.parent()
	case 2:
		f.tokens()
	case 3:
		f.ev.BlockSize = f.optionalUint32()
	case 4:
		f.loraID()
	case 5:
		f.ev.Medium = f.optionalText()
	case 6:
		f.ev.LoRAName = f.optionalName()
	case 7:
		f.extraKeys = f.located()
	default:
		f.suffix(n - i)
		return true
	}
	return false
}

// removedField reads field i, from 0, of the n fields that a positional BlockRemoved has after its
// tag. It returns true when it has read all remaining fields too.
func (f *eventFields) removedField(i, n int) bool {
	switch i {
	case 0:
		f.hashes()
	case 1:
		f.ev.Medium = f.optionalText()
	default:
		f.suffix(n - i)
		return true
	}
	return false
}

func (f *eventFields) clearedField(i int) {
	if i == 0 {
		f.ev.Ownership = f.optionalText()
		return
	}
	f.c.Skip()
}

// hashes reads an array of block hashes into the batch's memory. The event's slice has no spare
// capacity, so that an append to it cannot write over the next event's hashes.
func (f *eventFields) hashes() {
	h := f.mem.hashes
	start := len(h)
	for range f.c.Array() {
		h = append(h, kv.EngineHash(readEngineHash(f.c)))
		if f.c.Err != nil {
			break
		}
	}
	f.mem.hashes = h
	f.ev.BlockHashes = h[start:len(h):len(h)]
}

func (f *eventFields) parent() {
	f.ev.Parent, f.ev.HasParent = 0, false
	if !f.c.Null() {
		f.ev.Parent, f.ev.HasParent = kv.EngineHash(readEngineHash(f.c)), true
	}
}

// tokens reads a list of tokens, or of overlapping pairs (a,b) (b,c) …, which stand
// for a b c …. Engines with an Eagle draft model cache pairs.
func (f *eventFields) tokens() {
	n := f.c.Array()
	f.ev.Eagle = n > 0 && f.c.Peek() == msgpack.Array
	t := f.mem.tokens
	start := len(t)
	for range n {
		if !f.ev.Eagle {
			t = append(t, f.c.Uint32())
		} else {
			first, second := f.pair()
			if len(t) == start {
				t = append(t, first, second)
			} else {
				t[len(t)-1] = first
				t = append(t, second)
			}
		}
		if f.c.Err != nil {
			break
		}
	}
	f.mem.tokens = t
	f.ev.Tokens = t[start:len(t):len(t)]
}

func (f *eventFields) pair() (first, second uint32) {
	if n := f.c.Array(); f.c.Err == nil && n != 2 {
		f.c.Fail("%d tokens among pairs", n)
	}
	return f.c.Uint32(), f.c.Uint32()
}

// loraID reads the number of the LoRA adapter. A value that is no integer, such as nil, means none.
func (f *eventFields) loraID() {
	f.ev.LoRAID = 0
	if f.c.Peek() != msgpack.Int {
		f.c.Skip()
		return
	}
	v, _ := f.c.Integer()
	f.ev.LoRAID = int64(v)
}

func (f *eventFields) group() {
	f.ev.Group = NoGroup
	if !f.c.Null() {
		f.ev.Group = int32(f.c.Uint(math.MaxInt32))
	}
}

func (f *eventFields) optionalUint32() uint32 {
	if f.c.Null() {
		return 0
	}
	return f.c.Uint32()
}

func (f *eventFields) optionalText() string {
	if f.c.Null() {
		return ""
	}
	return f.decoder.strings.get(f.c.Text())
}

// optionalName reads a LoRA name or a cache salt.
func (f *eventFields) optionalName() string {
	if f.c.Null() {
		return ""
	}
	return f.decoder.name(f.c.Text())
}

// located skips a value and returns its encoded bytes, or nil for the value nil. finish decodes such
// values when all fields are known.
func (f *eventFields) located() []byte {
	if f.c.Null() {
		return nil
	}
	start := f.c.Offset()
	f.c.Skip()
	return f.c.Since(start)
}

// finish checks that the event is complete, reads what depends on several fields,
// and drops fields without meaning for the kind.
func (f *eventFields) finish() error {
	ev := &f.ev
	switch ev.Kind {
	case kvevent.Stored:
		if err := f.readMMInfos(); err != nil {
			return fmt.Errorf("block_mm_infos: %w", err)
		}
		return fieldError("extra_keys", f.readExtraKeys())
	case kvevent.Removed:
		*ev = Event{
			Kind: kvevent.Removed, BlockHashes: ev.BlockHashes, Medium: ev.Medium, Locality: ev.Locality,
			Ownership: ev.Ownership, Group: ev.Group, SpecKind: ev.SpecKind, SlidingWindow: ev.SlidingWindow,
		}
	case kvevent.Cleared:
		*ev = Event{
			Kind: kvevent.Cleared, Medium: ev.Medium, Locality: ev.Locality, Ownership: ev.Ownership, Group: ev.Group,
		}
	}
	return nil
}

// fieldError adds the field to err, which may be nil.
func fieldError(field string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", field, err)
}

// readEngineHash reads a block hash as 64 bits. An integer of either sign gives its bits, a byte
// string its last eight bytes as a big-endian number.
func readEngineHash(c *msgpack.Reader) uint64 {
	switch c.Peek() {
	case msgpack.Int:
		v, _ := c.Integer()
		return v
	case msgpack.Bin:
		b := c.Bin()
		if c.Err == nil && len(b) == 0 {
			c.Fail("a hash of no bytes")
		}
		var v uint64
		for _, x := range b[max(0, len(b)-8):] {
			v = v<<8 | uint64(x)
		}
		return v
	}
	c.Mismatch("an integer or bytes")
	return 0
}
