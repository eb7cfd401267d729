package engine

import (
	"encoding/binary"
	"iter"
	"math/rand/v2"

	zmq "github.com/pebbe/zmq4"
)

// replayEnd is the sequence number that ends a replay: -1 as vLLM packs it.
const replayEnd = ^uint64(0)

// replayBuffer holds the payloads of the last limit batches; batch seq lies at
// seq modulo limit. It belongs to the publisher's goroutine.
type replayBuffer struct {
	limit    int
	next     uint64 // one after the youngest batch
	payloads [][]byte
}

// add keeps the payload of batch seq, which follows the one added last, and
// forgets the oldest when the buffer is full.
func (b *replayBuffer) add(seq uint64, payload []byte) {
	if len(b.payloads) < b.limit {
		b.payloads = append(b.payloads, payload)
	} else {
		b.payloads[seq%uint64(b.limit)] = payload
	}
	b.next = seq + 1
}

// from iterates over the batches with numbers of at least start that are still
// held, oldest first.
func (b *replayBuffer) from(start uint64) iter.Seq2[uint64, []byte] {
	return func(yield func(uint64, []byte) bool) {
		for seq := max(start, b.next-uint64(len(b.payloads))); seq < b.next; seq++ {
			if !yield(seq, b.payloads[seq%uint64(b.limit)]) {
				return
			}
		}
	}
}

// answerReplays serves every replay request that has arrived. A request is
// [identity, "", first sequence]; anything else is ignored, as vLLM ignores it.
// The answer is one message per batch, then one that marks the end. A start
// below the buffer gets what is left: the asker sees it by the first number.
func (p *publisher) answerReplays() {
	for {
		msg, err := p.router.RecvMessageBytes(zmq.DONTWAIT)
		if err != nil {
			if !wouldBlock(err) {
				p.opts.ctr.framesFailed.Add(1)
			}
			return
		}
		if len(msg) != 3 || len(msg[1]) != 0 || len(msg[2]) != 8 {
			p.opts.ctr.replaysIgnored.Add(1)
			continue
		}
		p.replay(msg[0], binary.BigEndian.Uint64(msg[2]))
	}
}

func (p *publisher) replay(peer []byte, start uint64) {
	for seq, payload := range p.buffer.from(start) {
		if _, err := p.router.SendMessage(peer, "", p.opts.topic, sequenceFrame(seq), payload); err != nil {
			p.opts.ctr.framesFailed.Add(1)
			return
		}
		p.opts.ctr.framesReplayed.Add(1)
	}
	if _, err := p.router.SendMessage(peer, "", "", sequenceFrame(replayEnd), ""); err != nil {
		p.opts.ctr.framesFailed.Add(1)
	}
}

// chooseDrops picks n different sequence numbers among the first ones of a
// stream: never 0, with which a subscriber learns that the stream began.
func chooseDrops(n int, seed uint64, worker uint64) map[uint64]bool {
	drops := make(map[uint64]bool, n)
	r := rand.New(rand.NewPCG(seed, worker))
	for len(drops) < n {
		drops[1+r.Uint64N(uint64(n)*dropSpread)] = true
	}
	return drops
}

// dropSpread is how many frames there are, on average, to each dropped one.
const dropSpread = 8
