package stress

import "math/rand/v2"

// opKind is the kind of an operation.
type opKind uint8

const (
	// opGrant asks for slots for a run of blocks and fills them.
	opGrant opKind = iota
	// opCommit and opAbort end some of the client's grants.
	opCommit
	opAbort
	// opRegister stores blocks through handles.
	opRegister
	// opLookup waits for what is on disk, opGlance does not, opStorm is several
	// of both at once.
	opLookup
	opGlance
	opStorm
	// opUnpin gives some of the client's pins back.
	opUnpin
	opPrefetch
	opTouch
	opKeep
	// opEnd ends the client's session in good order, opDie leaves workers behind
	// that still write into its granted slots, until opGone.
	opEnd
	opDie
	opGone
	// opForget says that the processes of a session of an earlier agent are gone.
	opForget
	// opResetBlocks and opResetTier drop blocks that are not in use.
	opResetBlocks
	opResetTier
	// opRetire has all engines of a namespace leave and closes its pool.
	opRetire
	// opSettle waits until the pool has nothing to do, opRest until a disk that is
	// being left alone may be tried again.
	opSettle
	opRest
	// opClose, opKill and opPower end the agent: in good order, at once, and
	// together with the machine.
	opClose
	opKill
	opPower

	numOpKinds = iota
)

// opWeights returns the relative frequency of each kind of operation in a stream.
func opWeights() [numOpKinds]int {
	return [numOpKinds]int{
		opGrant: 185, opCommit: 162, opAbort: 25, opRegister: 40,
		opLookup: 200, opGlance: 80, opStorm: 25, opUnpin: 110,
		opPrefetch: 30, opTouch: 20, opKeep: 15,
		opEnd: 15, opDie: 20, opGone: 30, opForget: 60,
		opResetBlocks: 8, opResetTier: 3, opRetire: 6,
		opSettle: 40, opRest: 4,
		opClose: 4, opKill: 6, opPower: 3,
	}
}

// The keys that a namespace has: chains of blocks, each two of which begin with
// the same blocks.
const (
	chains      = 20
	chainLen    = 8
	chainShared = 4
	// maxClients is the largest number of engines.
	maxClients = 6
)

// operation is one step of a stream. It is drawn before anything runs, so that a stream
// is equal under every configuration. Its effect depends on earlier operations, such as
// the number of pins that exist.
type operation struct {
	kind opKind
	// client is the engine, modulo the number of engines.
	client int
	// chain, first and end name a run of blocks.
	chain, first, end int
	// n is a count; its meaning depends on the kind.
	n int
	// randomBits seeds the other random choices of the operation.
	randomBits uint64
}

// rng returns the generator of the operation's own random choices.
func (o *operation) rng() *rand.Rand { return rand.New(rand.NewPCG(o.randomBits, 0)) }

// stream returns n random operations. Equal seeds give equal streams.
func stream(seed uint64, n int) []operation {
	rng := rand.New(rand.NewPCG(seed, 1))
	weights := opWeights()
	total := 0
	for _, w := range weights {
		total += w
	}
	ops := make([]operation, n)
	for i := range ops {
		kind, at := opKind(0), rng.IntN(total)
		for at >= weights[kind] {
			at -= weights[kind]
			kind++
		}
		o := operation{kind: kind, client: rng.IntN(maxClients), n: 1 + rng.IntN(6), randomBits: rng.Uint64()}
		o.chain = min(rng.IntN(chains), rng.IntN(chains)) // some prompts are more frequent
		// Most runs begin at block 0, as prompts do.
		if rng.IntN(4) == 0 {
			o.first = rng.IntN(chainLen)
		}
		o.end = o.first + 1 + rng.IntN(chainLen-o.first)
		ops[i] = o
	}
	return ops
}
