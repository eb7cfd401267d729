package front

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strconv"
	"strings"
)

const (
	// A prompt begins with one of sharedPrefixes beginnings of prefixTokens tokens. The
	// rest, ownTokens tokens, is in no other prompt.
	sharedPrefixes = 64
	prefixTokens   = 512
	ownTokens      = 128
	// vocabulary is the number of different tokens.
	vocabulary = 150_000
	// A word of a text prompt is one token.
	wordLetters = 5
)

// call is one request of the load.
type call struct {
	path string
	body []byte
}

// maker makes requests. Equal seeds make equal requests.
type maker struct {
	rng      *rand.Rand
	prefixes [sharedPrefixes][]uint32
	noIDs    bool // every request is a chat
}

func newMaker(seed uint64, noIDs bool) *maker {
	m := &maker{rng: rand.New(rand.NewPCG(seed, 0)), noIDs: noIDs}
	for i := range m.prefixes {
		m.prefixes[i] = m.draw(prefixTokens)
	}
	return m
}

func (m *maker) draw(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = m.rng.Uint32N(vocabulary)
	}
	return out
}

// next returns the next request: half are chats with text, half completions with token ids. Its
// prompt begins with one of a few shared prefixes.
func (m *maker) next() call {
	group := m.rng.IntN(sharedPrefixes)
	tail := m.draw(ownTokens)
	if group%2 == 0 && !m.noIDs {
		all := append(append([]uint32(nil), m.prefixes[group]...), tail...)
		ids, err := json.Marshal(all)
		if err != nil {
			panic("BUG: numbers as JSON: " + err.Error())
		}
		return call{"/v1/completions", fmt.Appendf(nil, `{"model":%q,"prompt":%s,"stream":true,"max_tokens":%d}`, model, ids, chunks)}
	}
	return call{"/v1/chat/completions", fmt.Appendf(nil,
		`{"model":%q,"messages":[{"role":"system","content":%q},{"role":"user","content":%q}],"stream":true,"max_tokens":%d}`,
		model, words(m.prefixes[group]), words(tail), chunks)}
}

// held is a request whose stream stays open after its first chunk.
func held() call {
	return call{"/v1/chat/completions", fmt.Appendf(nil,
		`{"model":%q,"messages":[{"role":"user","content":"hello"}],"stream":true,"max_tokens":%d,"user":%q}`, model, chunks, holdUser)}
}

// holdUser is the user of requests whose streams stay open.
const holdUser = "hold"

// words returns a text with one word of fixed length for each token, which tokenise makes into
// one token again.
func words(tokens []uint32) string {
	var b strings.Builder
	for _, t := range tokens {
		text := strconv.FormatUint(uint64(t)+wordBase, 36)
		b.WriteString(text[len(text)-wordLetters+1:])
		b.WriteByte(' ')
	}
	return b.String()
}

// wordBase makes every word as long as the others.
const wordBase = 36 * 36 * 36 * 36

// tokenise appends to out the tokens that the stub makes of a text: one for each wordLetters bytes.
func tokenise(out []uint32, text string) []uint32 {
	for len(text) > 0 {
		n := min(wordLetters, len(text))
		out = append(out, crc32.ChecksumIEEE([]byte(text[:n]))%vocabulary)
		text = text[n:]
	}
	return out
}
