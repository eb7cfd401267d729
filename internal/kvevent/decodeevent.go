package kvevent

import (
	"fmt"
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// eventFields collects the fields of one engine event, which may come in any
// order. extra keys and multimodal infos are only located at first, because
// what they mean depends on other fields.
type eventFields struct {
	decoder *Decoder
	c       *cursor
	mem     *batchMemory
	ev      EngineEvent
	ignored bool
	// unknownKeys counts extra keys of a kind that is not known.
	unknownKeys int
	// extraKeys and mmInfos are the encoded values, nil when absent.
	extraKeys, mmInfos []byte
}

// tag reads the event's type.
func (f *eventFields) tag() error {
	switch tag := f.c.text(); string(tag) {
	case tagStored:
		f.ev.Kind = Stored
	case tagRemoved:
		f.ev.Kind = Removed
	case tagCleared:
		f.ev.Kind = Cleared
	case tagIgnored:
		f.ignored = true
	default:
		if f.c.err == nil {
			return fmt.Errorf("%w %.64q", ErrUnknownTag, tag)
		}
	}
	return fieldError("type", f.c.err)
}

// readMap reads {"type": tag, field: value, …}.
func (f *eventFields) readMap() error {
	typed := false
	for range f.c.mapping() {
		key := f.c.text()
		if string(key) == "type" {
			typed = true
			if err := f.tag(); err != nil {
				return err
			}
			continue
		}
		if f.ignored {
			f.c.skip()
		} else {
			f.field(key)
		}
		if f.c.err != nil {
			return fmt.Errorf("%.64q: %w", key, f.c.err)
		}
	}
	if f.c.err == nil && !typed {
		f.c.fail("event without type")
	}
	return f.c.err
}

// field reads the value of a map key. Keys that are not known are skipped.
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
		f.c.skip()
	}
}

// readArray reads a positional event:
//
//	BlockStored       hashes, parent, tokens, block size, LoRA id, medium, LoRA name, extra keys, suffix
//	BlockRemoved      hashes, medium, suffix
//	AllBlocksCleared  ownership
//
// Engines have appended fields over time; an event may end after any of them,
// but a stored one not before its block size and a removed one not before its
// hashes.
func (f *eventFields) readArray() error {
	n := f.c.array()
	if f.c.err != nil {
		return f.c.err
	}
	if n == 0 {
		return fmt.Errorf("byte %d: event without type", f.c.off)
	}
	if err := f.tag(); err != nil {
		return err
	}
	n--
	if least := leastFields(f.ev.Kind); n < least {
		return fmt.Errorf("%s event of %d fields, want at least %d", f.ev.Kind, n, least)
	}
	for i := 0; i < n && f.c.err == nil; i++ {
		var last bool
		switch f.ev.Kind {
		case Stored:
			last = f.storedField(i, n)
		case Removed:
			last = f.removedField(i, n)
		case Cleared:
			f.clearedField(i)
		default:
			f.c.skip()
		}
		if f.c.err != nil {
			return fmt.Errorf("field %d: %w", i+1, f.c.err)
		}
		if last {
			break
		}
	}
	return f.c.err
}

// leastFields is how many fields a positional event has after its tag.
func leastFields(k Kind) int {
	switch k {
	case Stored:
		return 4
	case Removed:
		return 1
	}
	return 0
}

// storedField reads field i of n after the tag; it says whether the rest has
// been read as well.
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
	f.c.skip()
}

func (f *eventFields) hashes() {
	h := f.mem.hashes
	start := len(h)
	for range f.c.array() {
		h = append(h, kv.EngineHash(f.c.engineHash()))
		if f.c.err != nil {
			break
		}
	}
	f.mem.hashes = h
	f.ev.BlockHashes = h[start:len(h):len(h)]
}

func (f *eventFields) parent() {
	f.ev.Parent, f.ev.HasParent = 0, false
	if !f.c.null() {
		f.ev.Parent, f.ev.HasParent = kv.EngineHash(f.c.engineHash()), true
	}
}

// tokens reads a list of tokens, or of the overlapping pairs (a,b) (b,c) … that
// engines with an Eagle draft model cache, which stand for a b c ….
func (f *eventFields) tokens() {
	n := f.c.array()
	f.ev.Eagle = n > 0 && f.c.peek() == wireArray
	t := f.mem.tokens
	start := len(t)
	for range n {
		if !f.ev.Eagle {
			t = append(t, f.c.uint32())
		} else {
			first, second := f.pair()
			if len(t) == start {
				t = append(t, first, second)
			} else {
				t[len(t)-1] = first
				t = append(t, second)
			}
		}
		if f.c.err != nil {
			break
		}
	}
	f.mem.tokens = t
	f.ev.Tokens = t[start:len(t):len(t)]
}

func (f *eventFields) pair() (first, second uint32) {
	if n := f.c.array(); f.c.err == nil && n != 2 {
		f.c.fail("%d tokens among pairs", n)
	}
	return f.c.uint32(), f.c.uint32()
}

// loraID reads the LoRA's number. Anything else than an integer is none.
func (f *eventFields) loraID() {
	f.ev.LoRAID = 0
	if f.c.peek() != wireInt {
		f.c.skip()
		return
	}
	v, _ := f.c.integer()
	f.ev.LoRAID = int64(v)
}

func (f *eventFields) group() {
	f.ev.Group = NoGroup
	if !f.c.null() {
		f.ev.Group = int32(f.c.uint(math.MaxInt32))
	}
}

func (f *eventFields) optionalUint32() uint32 {
	if f.c.null() {
		return 0
	}
	return f.c.uint32()
}

func (f *eventFields) optionalText() string {
	if f.c.null() {
		return ""
	}
	return f.decoder.strings.get(f.c.text())
}

// optionalName reads a LoRA name or a cache salt.
func (f *eventFields) optionalName() string {
	if f.c.null() {
		return ""
	}
	return f.decoder.name(f.c.text())
}

// located passes over a value and returns its encoding, nil for nil.
func (f *eventFields) located() []byte {
	if f.c.null() {
		return nil
	}
	start := f.c.off
	f.c.skip()
	return f.c.buf[start:f.c.off]
}

// finish checks that the event is whole, reads what depends on several fields,
// and drops fields that mean nothing for its kind.
func (f *eventFields) finish() error {
	ev := &f.ev
	switch ev.Kind {
	case Stored:
		if err := f.readMMInfos(); err != nil {
			return fmt.Errorf("block_mm_infos: %w", err)
		}
		return fieldError("extra_keys", f.readExtraKeys())
	case Removed:
		*ev = EngineEvent{
			Kind: Removed, BlockHashes: ev.BlockHashes, Medium: ev.Medium, Locality: ev.Locality,
			Ownership: ev.Ownership, Group: ev.Group, SpecKind: ev.SpecKind, SlidingWindow: ev.SlidingWindow,
		}
	case Cleared:
		*ev = EngineEvent{
			Kind: Cleared, Medium: ev.Medium, Locality: ev.Locality, Ownership: ev.Ownership, Group: ev.Group,
		}
	}
	return nil
}

// fieldError names the field of err, if there is one.
func fieldError(field string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", field, err)
}
