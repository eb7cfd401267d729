package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Served counts the prompt's tokens by the place where their KV came from. The four add
// up to the length of the prompt.
type Served struct {
	Device     int `json:"device"`
	Host       int `json:"host"`
	Disk       int `json:"disk"`
	Recomputed int `json:"recomputed"`
}

// update is a message to the client of a request. A request gets at most two: its first
// token, and its end with the output or an error.
type update struct {
	served *Served
	output []uint32
	err    error
}

// maxUpdates bounds the updates of a request.
const maxUpdates = 2

// phase is the state of a request in the scheduler.
type phase uint8

const (
	queued   phase = iota // waits for its turn; holds nothing
	asking                // waits for the answer to a lookup
	answered              // has the answer; waits for device blocks
	loading               // holds device blocks that are being loaded
	loaded                // holds loaded blocks; waits to run
	running               // computed in steps
	ended                 // its client has the last update
)

// request is one request in the engine. The core owns it.
type request struct {
	number  uint64 // its id at the agent
	seq     *sequence
	prompt  int             // tokens of seq that are the prompt
	want    int             // output tokens to generate
	seed    kv.SequenceHash // selects the output
	updates chan update     // has room for every update

	phase      phase
	aborted    bool   // its client has gone while a load writes its blocks
	generation uint32 // how often it was preempted

	// blocks are its device blocks, each with a reference. The first cached of them are
	// full and announced. The first computed tokens are done. The first offered blocks
	// have been offered to the agent.
	blocks []int32
	// window are the device blocks of the sliding window of a hybrid model, one for each of
	// blocks. A block that the window has left is none.
	window                    []int32
	computed, cached, offered int
	scheduled                 int // tokens of the step under way

	talk    conversation    // nil without an agent
	after   <-chan struct{} // closed when the conversation of its last attempt has ended
	hit     lookupHit
	lookups int // asked in this attempt

	served      Served
	servedKnown bool
}

// hittable returns the blocks that a hit can spare: all full blocks, but never the last
// token, whose logits are needed.
func (r *request) hittable() []identity {
	return r.seq.ids[:(len(r.seq.tokens)-1)/r.seq.naming.blockSize]
}

// last reports whether the next output token is the last one.
func (r *request) last() bool { return len(r.seq.tokens)-r.prompt+1 == r.want }

// left returns the number of tokens that are not computed yet.
func (r *request) left() int { return len(r.seq.tokens) - r.computed }

// parentOf returns the identity of the block before block n, nil for the first.
func (r *request) parentOf(n int) *identity {
	if n == 0 {
		return nil
	}
	return &r.seq.ids[n-1]
}

// blockTokens returns the tokens of the full blocks first … end-1.
func (r *request) blockTokens(first, end int) []uint32 {
	size := r.seq.naming.blockSize
	return r.seq.tokens[first*size : end*size]
}

// countServed records in r.served where the KV of the prompt came from: device is the number of
// blocks found on the device, and sources has the tier of each loaded block. Only the first
// admission counts; later ones follow a preemption.
func (r *request) countServed(device int, sources []kv.Tier) {
	if r.servedKnown {
		return
	}
	r.servedKnown = true
	size := r.seq.naming.blockSize
	r.served.Device = device * size
	for _, t := range sources {
		if t == kv.TierDisk {
			r.served.Disk += size
		} else {
			r.served.Host += size
		}
	}
	r.served.Recomputed = r.prompt - r.served.Device - r.served.Host - r.served.Disk
}

// tell sends the client an update. It never blocks.
func (r *request) tell(u update) {
	select {
	case r.updates <- u:
	default:
		panic("BUG: more updates than a request has")
	}
}

// vocabulary is the number of different output tokens.
const vocabulary = 32000

// identity is the names of one full block.
type identity struct {
	// engine is this process's own name, for its events.
	engine kv.EngineHash
	// seq is the name that every engine and the router compute alike.
	seq kv.SequenceHash
	// key names the bytes of the block.
	key kv.BlockKey
}

// naming is the input of block names besides tokens.
type naming struct {
	// secret starts the chain of engine hashes. It is random for each process, so that
	// two engines' hashes never match.
	secret    [sha256.Size]byte
	namespace kv.NamespaceID
	blockSize int
}

// sequence is the tokens of one request, prompt and output, and the identities of its
// full blocks. One goroutine at a time may use it. Tokens are only appended: an earlier
// slice of them stays valid.
type sequence struct {
	naming naming
	tokens []uint32
	ids    []identity

	digest [sha256.Size]byte // the last full block's engine digest
	hasher kv.Hasher
	keyer  *kv.Keyer
	buf    []byte
}

// newSequence names the full blocks of prompt and keeps prompt. Tokens that are pushed later lie elsewhere, because
// several requests may have one prompt.
func newSequence(n naming, prompt []uint32) *sequence {
	s := &sequence{naming: n, tokens: slices.Clip(prompt), digest: n.secret, keyer: kv.NewKeyer()}
	s.ids = make([]identity, 0, len(prompt)/n.blockSize+1)
	s.nameFull()
	return s
}

// push appends one token.
func (s *sequence) push(token uint32) {
	s.tokens = append(s.tokens, token)
	s.nameFull()
}

// prefixHash returns the hash of all tokens, a last partial block included. It selects the
// output, so that equal prompts get equal output.
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

// nameFull computes the identity (hashes and key) of each full block that has none yet.
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

// engineHash returns the engine's own hash of the next block, whose tokens are block, and
// advances the chain of digests. As in vLLM, the hash in events is the digest's last eight bytes,
// big-endian.
func (s *sequence) engineHash(block []uint32) kv.EngineHash {
	s.buf = append(s.buf[:0], s.digest[:]...)
	for _, t := range block {
		s.buf = binary.LittleEndian.AppendUint32(s.buf, t)
	}
	s.digest = sha256.Sum256(s.buf)
	return kv.EngineHash(binary.BigEndian.Uint64(s.digest[sha256.Size-8:]))
}

// outputToken returns token i of the continuation of a prompt with the given hash.
func outputToken(prompt kv.SequenceHash, i int) uint32 {
	return uint32(payloadWord(uint64(prompt)+uint64(i)*weyl, uint64(i)) % vocabulary)
}
