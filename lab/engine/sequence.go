package engine

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// vocabulary is the number of different output tokens.
const vocabulary = 32000

// identity is the names of one full block.
type identity struct {
	// engine is this process's own name, used in its events.
	engine kv.EngineHash
	// seq is the name that every engine and the router agree on.
	seq kv.SequenceHash
	// key says what bytes the block holds.
	key kv.BlockKey
}

// naming is what the names of blocks depend on besides tokens.
type naming struct {
	// secret starts the chain of engine hashes; random for each process, so that
	// nobody can take two engines' hashes for one another.
	secret    [sha256.Size]byte
	namespace kv.NamespaceID
	blockSize int
}

// sequence is the tokens of one request, prompt and output, and the identities
// of its full blocks. One goroutine at a time may use it. Tokens are only ever
// appended: a slice of them taken earlier stays true.
type sequence struct {
	naming naming
	tokens []uint32
	ids    []identity

	digest [sha256.Size]byte // the last full block's engine digest
	hasher kv.Hasher
	keyer  *kv.Keyer
	buf    []byte
}

// newSequence names the full blocks of prompt. It keeps prompt.
func newSequence(n naming, prompt []uint32) *sequence {
	s := &sequence{naming: n, tokens: prompt, digest: n.secret, keyer: kv.NewKeyer()}
	s.ids = make([]identity, 0, len(prompt)/n.blockSize+1)
	s.nameFull()
	return s
}

// push appends one token.
func (s *sequence) push(token uint32) {
	s.tokens = append(s.tokens, token)
	s.nameFull()
}

// prefixHash is the hash of all tokens, a last partial block included.
func (s *sequence) prefixHash() kv.SequenceHash {
	full := len(s.ids) * s.naming.blockSize
	if full == len(s.tokens) && full > 0 {
		return s.ids[len(s.ids)-1].seq
	}
	tail := s.hasher.Local(s.tokens[full:], kv.HashSeed, nil)
	if full == 0 {
		return kv.SequenceHash(tail)
	}
	return kv.Chain(s.ids[len(s.ids)-1].seq, tail)
}

// nameFull gives every full block that has none its identity.
func (s *sequence) nameFull() {
	size := s.naming.blockSize
	for n := len(s.ids); (n+1)*size <= len(s.tokens); n++ {
		block := s.tokens[n*size : (n+1)*size]
		var id identity
		id.engine = s.engineHash(block)
		local := s.hasher.Local(block, kv.HashSeed, nil)
		if n == 0 {
			id.seq = kv.SequenceHash(local)
			id.key = s.keyer.Next(s.keyer.Root(s.naming.namespace, "", ""), block, nil)
		} else {
			id.seq = kv.Chain(s.ids[n-1].seq, local)
			id.key = s.keyer.Next(s.ids[n-1].key, block, nil)
		}
		s.ids = append(s.ids, id)
	}
}

// engineHash advances the chain of engine digests by one block. As in vLLM, the
// name in events is the digest's last eight bytes, big-endian.
func (s *sequence) engineHash(block []uint32) kv.EngineHash {
	s.buf = append(s.buf[:0], s.digest[:]...)
	for _, t := range block {
		s.buf = binary.LittleEndian.AppendUint32(s.buf, t)
	}
	s.digest = sha256.Sum256(s.buf)
	return kv.EngineHash(binary.BigEndian.Uint64(s.digest[sha256.Size-8:]))
}

// outputToken is token i of the continuation of a prompt with the given hash.
func outputToken(prompt kv.SequenceHash, i int) uint32 {
	return uint32(payloadWord(uint64(prompt)+uint64(i)*weyl, uint64(i)) % vocabulary)
}
