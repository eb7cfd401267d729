package engineevent

import "github.com/blockyard-ai/blockyard/internal/kv"

// A stream of events repeats a few strings: media, adapters, salts, topics.
// Their number is bounded for the sake of salts, of which a client may invent
// any number.
const (
	maxInterned       = 512
	maxInternedLength = 256
)

// interner turns bytes into strings and allocates only for those it has not
// seen lately. The zero value is ready.
type interner struct {
	seen map[string]string
}

func (t *interner) get(b []byte) string {
	if s, ok := t.seen[string(b)]; ok || len(b) == 0 {
		return s
	}
	s := string(b)
	if len(b) > maxInternedLength {
		return s
	}
	if t.seen == nil {
		t.seen = make(map[string]string)
	} else if len(t.seen) >= maxInterned {
		clear(t.seen)
	}
	t.seen[s] = s
	return s
}

// name returns the text of a LoRA name or cache salt; a long one is replaced by
// kv.BoundedName.
func (d *Decoder) name(b []byte) string {
	if len(b) > kv.MaxNameBytes {
		return kv.BoundedName(string(b))
	}
	return d.strings.get(b)
}
