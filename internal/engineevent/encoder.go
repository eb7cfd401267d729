package engineevent

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// AppendBatch appends b in the form of vLLM 0.26 and later: an array of timestamp,
// events and rank (nil without one), where events are maps and hashes integers.
// Keys that an event does not need are left out, so that a batch without salts and
// multimodal objects has the bytes that vLLM sends. b.Bad is not encoded. Every
// event must have a Kind.
func AppendBatch(dst []byte, b *Batch) []byte {
	dst = msgp.AppendArrayHeader(dst, 3)
	dst = msgp.AppendFloat64(dst, b.Timestamp)
	dst = msgp.AppendArrayHeader(dst, uint32(len(b.Events)))
	for i := range b.Events {
		dst = appendEvent(dst, &b.Events[i])
	}
	if !b.HasRank {
		return msgp.AppendNil(dst)
	}
	return msgp.AppendUint32(dst, uint32(b.Rank))
}

// appendEvent appends one event as a msgpack map.
func appendEvent(dst []byte, e *Event) []byte {
	switch e.Kind {
	case kvevent.Stored:
		return appendStored(dst, e)
	case kvevent.Removed:
		return appendRemoved(dst, e)
	case kvevent.Cleared:
		return appendCleared(dst, e)
	}
	panic("BUG: engine event of kind " + e.Kind.String())
}

// appendStored appends a BlockStored event with the keys in vLLM's order.
func appendStored(dst []byte, e *Event) []byte {
	n := 8 + e.groupKeys() + e.placeKeys() // eight keys are always there
	if e.Salt != "" {
		n++
	}
	if e.Multimodal != nil {
		n++
	}
	dst = appendTag(dst, n, tagStored)
	dst = appendHashes(dst, e.BlockHashes)
	dst = msgp.AppendString(dst, "parent_block_hash")
	if e.HasParent {
		dst = msgp.AppendUint64(dst, uint64(e.Parent))
	} else {
		dst = msgp.AppendNil(dst)
	}
	dst = appendTokens(dst, e)
	dst = msgp.AppendString(dst, "block_size")
	dst = msgp.AppendUint32(dst, e.BlockSize)
	dst = msgp.AppendString(dst, "lora_id")
	if e.LoRAID == 0 {
		dst = msgp.AppendNil(dst)
	} else {
		dst = msgp.AppendInt64(dst, e.LoRAID)
	}
	dst = appendTextOrNil(dst, "medium", e.Medium)
	dst = appendTextOrNil(dst, "lora_name", e.LoRAName)
	dst = appendText(dst, "cache_salt", e.Salt)
	dst = e.appendGroup(dst)
	dst = e.appendPlace(dst)
	if e.Multimodal != nil {
		dst = appendMMInfos(dst, e.Multimodal)
	}
	return dst
}

func appendRemoved(dst []byte, e *Event) []byte {
	dst = appendTag(dst, 3+e.groupKeys()+e.placeKeys(), tagRemoved)
	dst = appendHashes(dst, e.BlockHashes)
	dst = appendTextOrNil(dst, "medium", e.Medium)
	dst = e.appendGroup(dst)
	return e.appendPlace(dst)
}

// appendCleared appends an AllBlocksCleared event, with the keys that are set.
func appendCleared(dst []byte, e *Event) []byte {
	n := 1 + e.placeKeys()
	if e.Medium != "" {
		n++
	}
	dst = appendTag(dst, n, tagCleared)
	dst = appendText(dst, "medium", e.Medium)
	return e.appendPlace(dst)
}

// appendTag appends the header of a map of n pairs and the first of them.
func appendTag(dst []byte, n int, tag string) []byte {
	dst = msgp.AppendMapHeader(dst, uint32(n))
	dst = msgp.AppendString(dst, "type")
	return msgp.AppendString(dst, tag)
}

// appendHashes appends the key block_hashes and the hashes as unsigned integers.
func appendHashes(dst []byte, hashes []kv.EngineHash) []byte {
	dst = msgp.AppendString(dst, "block_hashes")
	dst = msgp.AppendArrayHeader(dst, uint32(len(hashes)))
	for _, h := range hashes {
		dst = msgp.AppendUint64(dst, uint64(h))
	}
	return dst
}

// appendTokens appends the key token_ids and the tokens. For an engine with an Eagle draft model the
// tokens a b c are the overlapping pairs (a,b) (b,c).
func appendTokens(dst []byte, e *Event) []byte {
	dst = msgp.AppendString(dst, "token_ids")
	if !e.Eagle || len(e.Tokens) < 2 {
		dst = msgp.AppendArrayHeader(dst, uint32(len(e.Tokens)))
		for _, t := range e.Tokens {
			dst = msgp.AppendUint32(dst, t)
		}
		return dst
	}
	dst = msgp.AppendArrayHeader(dst, uint32(len(e.Tokens)-1))
	for i, t := range e.Tokens[1:] {
		dst = msgp.AppendArrayHeader(dst, 2)
		dst = msgp.AppendUint32(dst, e.Tokens[i])
		dst = msgp.AppendUint32(dst, t)
	}
	return dst
}

// appendMMInfos appends the key block_mm_infos: for each block nil, or its multimodal objects.
// blocks has the hashes of the objects by block. The offsets stay empty, because Event does not
// keep them.
func appendMMInfos(dst []byte, blocks [][]uint64) []byte {
	dst = msgp.AppendString(dst, "block_mm_infos")
	dst = msgp.AppendArrayHeader(dst, uint32(len(blocks)))
	for _, objects := range blocks {
		if len(objects) == 0 {
			dst = msgp.AppendNil(dst)
			continue
		}
		dst = msgp.AppendMapHeader(dst, 1)
		dst = msgp.AppendString(dst, "mm_objects")
		dst = msgp.AppendArrayHeader(dst, uint32(len(objects)))
		for _, h := range objects {
			dst = msgp.AppendMapHeader(dst, 2)
			dst = msgp.AppendString(dst, "mm_hash")
			dst = msgp.AppendUint64(dst, h)
			dst = msgp.AppendString(dst, "offsets")
			dst = msgp.AppendArrayHeader(dst, 0)
		}
	}
	return dst
}

// groupKeys returns the number of keys that appendGroup writes, for the header of the map.
func (e *Event) groupKeys() int {
	n := 0
	if e.Group != NoGroup {
		n++
	}
	if e.SpecKind != "" {
		n++
	}
	if e.SlidingWindow != 0 {
		n++
	}
	return n
}

// appendGroup appends the keys about the KV cache group that are set.
func (e *Event) appendGroup(dst []byte) []byte {
	if e.Group != NoGroup {
		dst = msgp.AppendString(dst, "group_idx")
		dst = msgp.AppendUint32(dst, uint32(e.Group))
	}
	dst = appendText(dst, "kv_cache_spec_kind", e.SpecKind)
	if e.SlidingWindow != 0 {
		dst = msgp.AppendString(dst, "kv_cache_spec_sliding_window")
		dst = msgp.AppendUint32(dst, e.SlidingWindow)
	}
	return dst
}

// placeKeys returns the number of keys that appendPlace writes, for the header of the map.
func (e *Event) placeKeys() int {
	n := 0
	if e.Locality != "" {
		n++
	}
	if e.Ownership != "" {
		n++
	}
	return n
}

func (e *Event) appendPlace(dst []byte) []byte {
	dst = appendText(dst, "locality", e.Locality)
	return appendText(dst, "ownership", e.Ownership)
}

// appendText appends a pair unless the value is empty.
func appendText(dst []byte, key, value string) []byte {
	if value == "" {
		return dst
	}
	dst = msgp.AppendString(dst, key)
	return msgp.AppendString(dst, value)
}

// appendTextOrNil appends a pair whose value is nil when empty.
func appendTextOrNil(dst []byte, key, value string) []byte {
	dst = msgp.AppendString(dst, key)
	if value == "" {
		return msgp.AppendNil(dst)
	}
	return msgp.AppendString(dst, value)
}
