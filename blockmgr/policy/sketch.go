package policy

// sketch counts how often blocks were asked for, in 4 bits for each of four places of a block. The
// count of a block is the least of its places, so that it is never too low but by ageing. After
// ten times as many additions as it has room for, every count is halved.
type sketch struct {
	// words have 16 counts each. Their number is a power of two.
	words []uint64
	added int
	limit int
}

// maxCount is the largest count of a sketch.
const maxCount = 15

// resize makes room for n blocks. Counts are kept when the sketch grows, because their places follow
// from the low bits of a hash; it never shrinks.
func (s *sketch) resize(n int) {
	want := 16
	for want < n {
		want *= 2
	}
	for len(s.words) < want {
		s.words = append(s.words, append([]uint64(nil), s.words...)...)
		if len(s.words) == 0 {
			s.words = make([]uint64, 16)
		}
	}
	s.limit = 10 * n
}

// place returns the word and the shift of a hash's count number i.
func (s *sketch) place(hash uint64, i int) (word, shift uint64) {
	h := hash
	for range i {
		h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
	}
	return h & uint64(len(s.words)-1), h >> 60 << 2
}

// add counts a block.
func (s *sketch) add(hash uint64) {
	if len(s.words) == 0 {
		return
	}
	hash = mixed(hash)
	grown := false
	for i := range 4 {
		word, shift := s.place(hash, i)
		if s.words[word]>>shift&maxCount < maxCount {
			s.words[word] += 1 << shift
			grown = true
		}
	}
	if grown {
		if s.added++; s.added >= s.limit {
			s.halve()
		}
	}
}

// estimate returns the count of a block.
func (s *sketch) estimate(hash uint64) uint64 {
	if len(s.words) == 0 {
		return 0
	}
	hash = mixed(hash)
	least := uint64(maxCount)
	for i := range 4 {
		word, shift := s.place(hash, i)
		least = min(least, s.words[word]>>shift&maxCount)
	}
	return least
}

// halve halves all counts.
func (s *sketch) halve() {
	for i := range s.words {
		s.words[i] = s.words[i] >> 1 & 0x7777777777777777
	}
	s.added /= 2
}

// mixed spreads a hash over all bits.
func mixed(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
