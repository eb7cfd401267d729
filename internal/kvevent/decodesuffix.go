package kvevent

// maxSuffix is how many fields a positional event can have after its fixed
// ones; whatever follows is skipped.
const maxSuffix = 5

// suffix reads the last n fields of a positional event. Engines of different
// versions put different fields there, so types decide. Group, spec kind,
// sliding window, locality and, last, ownership are taken in that order where
// at least the first four are there; otherwise the first integer is the group,
// the second the sliding window, the first string the spec kind and the first
// array the multimodal infos.
func (f *eventFields) suffix(n int) {
	var kinds [maxSuffix]wireKind
	known := min(n, maxSuffix)
	start := f.c.off
	for i := range known {
		kinds[i] = f.c.peek()
		f.c.skip()
	}
	if f.c.err != nil {
		return
	}
	f.c.off = start
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
		f.c.skip()
	}
}

// fullSuffix reports whether the kinds are those of the full list of fields,
// each of which may be nil.
func fullSuffix(kinds []wireKind) bool {
	want := [maxSuffix]wireKind{wireInt, wireText, wireInt, wireText, wireText}
	for i, k := range kinds {
		if k != wireNil && k != want[i] {
			return false
		}
	}
	return len(kinds) >= 4
}

func (f *eventFields) suffixByType(kinds []wireKind) {
	integers, texts := 0, 0
	for _, k := range kinds {
		switch {
		case k == wireInt && integers == 0:
			f.group()
			integers++
		case k == wireInt && integers == 1:
			f.ev.SlidingWindow = f.optionalUint32()
			integers++
		case k == wireText && texts == 0:
			f.ev.SpecKind = f.optionalText()
			texts++
		case k == wireArray && f.mmInfos == nil:
			f.mmInfos = f.located()
		default:
			f.c.skip()
		}
	}
}
