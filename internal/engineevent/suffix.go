package engineevent

import "github.com/blockyard-ai/blockyard/internal/msgpack"

// maxSuffix is how many fields a positional event can have after its fixed ones.
// Further fields are skipped.
const maxSuffix = 5

// suffix reads the last n fields of a positional event. Engines of different
// versions have different fields there, so the types decide. A list of at least the
// first four of group, spec kind, sliding window, locality and ownership is read in
// that order. Otherwise the first integer is the group, the second the sliding
// window, the first string the spec kind, and the first array the multimodal infos.
func (f *eventFields) suffix(n int) {
	// The first pass looks at the types only; the second, after Rewind, reads the values.
	var kinds [maxSuffix]msgpack.Kind
	known := min(n, maxSuffix)
	start := f.c.Offset()
	for i := range known {
		kinds[i] = f.c.Peek()
		f.c.Skip()
	}
	if f.c.Err != nil {
		return
	}
	f.c.Rewind(start)
	if fullSuffix(kinds[:known]) {
		f.group()
		f.ev.SpecKind = f.optionalText()
		f.ev.SlidingWindow = f.optionalUint32()
		f.ev.Locality = f.optionalText()
		if known > 4 {
			f.ev.Ownership = f.optionalText()
		}
	} else {
		f.suffixByType(kinds[:known])
	}
	for range n - known {
		f.c.Skip()
	}
}

// fullSuffix reports whether kinds are those of the full list of last fields: group, spec kind,
// sliding window, locality and, unless it is missing, ownership. Each field may be nil.
func fullSuffix(kinds []msgpack.Kind) bool {
	want := [maxSuffix]msgpack.Kind{msgpack.Int, msgpack.Text, msgpack.Int, msgpack.Text, msgpack.Text}
	for i, k := range kinds {
		if k != msgpack.Nil && k != want[i] {
			return false
		}
	}
	return len(kinds) >= 4
}

// suffixByType reads fields of the given kinds by the rule for short lists; see suffix. A value that
// the rule gives no meaning is skipped.
func (f *eventFields) suffixByType(kinds []msgpack.Kind) {
	integers, texts := 0, 0
	for _, k := range kinds {
		switch {
		case k == msgpack.Int && integers == 0:
			f.group()
			integers++
		case k == msgpack.Int && integers == 1:
			f.ev.SlidingWindow = f.optionalUint32()
			integers++
		case k == msgpack.Text && texts == 0:
			f.ev.SpecKind = f.optionalText()
			texts++
		case k == msgpack.Array && f.mmInfos == nil:
			f.mmInfos = f.located()
		default:
			f.c.Skip()
		}
	}
}
