package zmq

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// blockSize is that of the engines in these tests.
const blockSize = sourcetest.BlockSize

// plainEngine publishes KV events over ZMQ as vLLM or SGLang does, and knows what it holds.
type plainEngine struct {
	t      *testing.T
	pub    *zmqpub.Publisher
	worker kv.WorkerID
	// encode makes the payload of a batch: engineevent.AppendBatch or appendSGLang.
	encode func([]byte, *engineevent.Batch) []byte
	// held has the engine's own hash of each block, and leaves how many children a block
	// has.
	held     map[kv.SequenceHash]kv.EngineHash
	children map[kv.SequenceHash]int
	parents  map[kv.SequenceHash]kv.SequenceHash
	next     kv.EngineHash
}

func startEngine(t *testing.T, worker kv.WorkerID, o zmqpub.Options) *plainEngine {
	t.Helper()
	o.BufferSteps = 10_000
	var pub *zmqpub.Publisher
	// A port that was given up a moment ago may still be in use.
	sourcetest.Eventually(t, "the engine binds its endpoints", func() bool {
		var err error
		pub, err = zmqpub.New(o)
		return err == nil
	})
	t.Cleanup(pub.Close)
	return &plainEngine{
		t: t, pub: pub, worker: worker, encode: engineevent.AppendBatch, held: make(map[kv.SequenceHash]kv.EngineHash),
		children: make(map[kv.SequenceHash]int), parents: make(map[kv.SequenceHash]kv.SequenceHash),
		next: kv.EngineHash(worker)*1_000_000 + 1,
	}
}

// target says how to follow the engine.
func (e *plainEngine) target() source.Engine {
	return source.Engine{
		Worker: e.worker, Model: "m", BlockSize: blockSize,
		Ranks: []source.EngineRank{{Events: e.pub.Events, Replay: e.pub.Replay}},
		Card:  kvevent.ModelCard{Endpoint: "http://a:8000", Ranks: 1, DeviceBlocks: 1000},
	}
}

func (e *plainEngine) publish(events ...engineevent.Event) {
	e.t.Helper()
	b := engineevent.Batch{Timestamp: float64(time.Now().UnixNano()), HasRank: true, Events: events}
	if !e.pub.Publish(e.encode(nil, &b)) {
		e.t.Fatal("the engine is closed")
	}
}

// appendSGLang appends a batch as SGLang 0.5 does: events are arrays, and hashes are signed.
func appendSGLang(dst []byte, b *engineevent.Batch) []byte {
	hashes := func(all []kv.EngineHash) {
		dst = msgp.AppendArrayHeader(dst, uint32(len(all)))
		for _, h := range all {
			dst = msgp.AppendInt64(dst, int64(h))
		}
	}
	dst = msgp.AppendArrayHeader(dst, 3)
	dst = msgp.AppendFloat64(dst, b.Timestamp)
	dst = msgp.AppendArrayHeader(dst, uint32(len(b.Events)))
	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind == kvevent.Removed {
			dst = msgp.AppendString(msgp.AppendArrayHeader(dst, 3), "BlockRemoved")
			hashes(e.BlockHashes)
			dst = msgp.AppendString(dst, e.Medium)
			continue
		}
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, 7), "BlockStored")
		hashes(e.BlockHashes)
		if e.HasParent {
			dst = msgp.AppendInt64(dst, int64(e.Parent))
		} else {
			dst = msgp.AppendNil(dst)
		}
		dst = msgp.AppendArrayHeader(dst, uint32(len(e.Tokens)))
		for _, t := range e.Tokens {
			dst = msgp.AppendUint32(dst, t)
		}
		dst = msgp.AppendUint32(dst, e.BlockSize)
		dst = msgp.AppendNil(dst) // lora_id
		dst = msgp.AppendString(dst, e.Medium)
	}
	return msgp.AppendUint32(dst, uint32(b.Rank))
}

// sequence returns the identities of a prompt's blocks.
func sequence(tokens []uint32, lora, salt string) []kv.SequenceHash {
	var h kv.Hasher
	return kv.AppendSequence(nil, h.AppendLocals(nil, tokens, blockSize, kv.LocalSeed(lora, salt)))
}

// compute publishes the blocks of a prompt that the engine does not hold, in one event.
func (e *plainEngine) compute(tokens []uint32, lora, salt string) {
	e.t.Helper()
	all := sequence(tokens, lora, salt)
	from := 0
	for from < len(all) && e.held[all[from]] != 0 {
		from++
	}
	if from == len(all) {
		return
	}
	event := engineevent.Event{
		Kind: kvevent.Stored, BlockSize: blockSize, Tokens: tokens[from*blockSize : len(all)*blockSize],
		LoRAName: lora, Medium: "GPU", Group: engineevent.NoGroup,
	}
	if from == 0 {
		event.Salt = salt
	} else {
		event.Parent, event.HasParent = e.held[all[from-1]], true
	}
	for i := from; i < len(all); i++ {
		e.held[all[i]] = e.next
		event.BlockHashes = append(event.BlockHashes, e.next)
		e.next += 7
		if i > 0 {
			e.parents[all[i]] = all[i-1]
			e.children[all[i-1]]++
		}
	}
	e.publish(event)
}

// evict removes some leaves.
func (e *plainEngine) evict(rng *rand.Rand, n int) {
	e.t.Helper()
	event := engineevent.Event{Kind: kvevent.Removed, Medium: "GPU", Group: engineevent.NoGroup}
	for _, h := range slices.Sorted(maps.Keys(e.held)) {
		if e.children[h] > 0 || rng.IntN(3) > 0 || len(event.BlockHashes) == n {
			continue
		}
		event.BlockHashes = append(event.BlockHashes, e.held[h])
		if p, ok := e.parents[h]; ok {
			e.children[p]--
		}
		delete(e.held, h)
		delete(e.parents, h)
	}
	if len(event.BlockHashes) > 0 {
		e.publish(event)
	}
}

// agreed reports whether a router holds exactly the blocks of the engines.
func agreed(r *router.Router, engines ...*plainEngine) bool {
	dump := routertest.Dump(r)
	if len(dump) != len(engines) {
		return false
	}
	for _, e := range engines {
		i := slices.IndexFunc(dump, func(o routertest.OwnerDump) bool { return o.Owner == kv.WorkerOwner(kv.Worker{ID: e.worker}) })
		if i < 0 || len(dump[i].Blocks) != len(e.held) {
			return false
		}
		for _, b := range dump[i].Blocks {
			if e.held[b.Hash] == 0 || b.Tiers != kv.TierMask(0).With(kv.TierDevice) {
				return false
			}
		}
	}
	return true
}

// prompts draws prompts that share prefixes: a walk over few blocks.
func prompts(rng *rand.Rand, n int) [][]uint32 {
	all := make([][]uint32, n)
	for i := range all {
		ids := make([]uint32, 1+rng.IntN(12))
		for j := range ids {
			ids[j] = 1 + rng.Uint32N(3)
		}
		all[i] = sourcetest.Tokens(ids...)
	}
	return all
}
