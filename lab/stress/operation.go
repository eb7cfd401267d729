package stress

import "math/rand/v2"

// opKind is what an operation does.
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
	// opResetBlocks and opResetTier empty what nobody uses.
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

// opWeights say how often each operation comes, in proportion to the others.
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
	// maxClients is the most engines that there are.
	maxClients = 6
)

// operation is one step of a stream. It is drawn before anything runs, so that
// the stream is the same under every configuration; what it does, such as how
// many pins there are to give back, depends on what came of the earlier ones.
type operation struct {
	kind opKind
	// client is the engine, modulo the number of them.
	client int
	// chain, first and end name a run of blocks.
	chain, first, end int
	// n is how many of something.
	n int
	// draw seeds whatever else the operation chooses at random.
	draw uint64
}

// rng makes the operation's own random choices.
func (o *operation) rng() *rand.Rand { return rand.New(rand.NewPCG(o.draw, 0)) }

// stream draws the operations of a round.
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
		o := operation{kind: kind, client: rng.IntN(maxClients), n: 1 + rng.IntN(6), draw: rng.Uint64()}
		o.chain = min(rng.IntN(chains), rng.IntN(chains)) // some prompts are asked for more often
		// Most runs begin at the beginning, as prompts do.
		if rng.IntN(4) == 0 {
			o.first = rng.IntN(chainLen)
		}
		o.end = o.first + 1 + rng.IntN(chainLen-o.first)
		ops[i] = o
	}
	return ops
}
