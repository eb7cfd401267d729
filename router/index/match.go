package index

import "github.com/blockyard-ai/blockyard/internal/kv"

// Hits counts the blocks of a prompt that one worker can reach, by tier.
type Hits [kv.NumTiers]uint32

// Total is the number of blocks over all tiers.
func (h *Hits) Total() uint32 {
	var n uint32
	for _, v := range h {
		n += v
	}
	return n
}

// Match is what one worker has of a prompt.
type Match struct {
	Worker kv.Worker
	Hits   Hits
}

// Matches is the answer to Match and the memory that it needs; reused,
// it allocates nothing. It is for one goroutine at a time. The zero value is
// ready.
type Matches struct {
	// Workers has one entry for each known worker, ordered by worker, those
	// without a hit included. It is valid until the next call.
	Workers []Match
	// Sequence are the SequenceHashes of the prompt's blocks, valid until the
	// next call.
	Sequence []kv.SequenceHash

	// live are the workers whose walk goes on.
	live []walker
	// seen is, per owner, the mask of the block at hand when its stamp is stamp.
	seen  []sighting
	stamp uint32
}

// walker is a worker on its way along the prompt.
type walker struct {
	at        int32 // in Matches.Workers
	own, pool ownerID
	tier      kv.Tier // the tier that a continuation has reached
}

type sighting struct {
	stamp uint32
	tiers kv.TierMask
}

// Match fills dst with what each worker has of the prompt whose blocks are
// locals. For each worker it counts, from the first block on, the consecutive
// blocks on the worker's own device; from where that ended, the consecutive
// blocks in host memory; then those on disk; then external ones. Below the
// device the blocks of the worker's pool count as the worker's. Hits of a lower
// tier are therefore extensions, and a walk never returns to a faster tier.
func (x *Index) Match(dst *Matches, locals []kv.LocalHash) {
	dst.Sequence = kv.AppendSequence(dst.Sequence[:0], locals)
	x.mu.RLock()
	defer x.mu.RUnlock()
	dst.begin(x.members, len(x.owners))
	for _, h := range dst.Sequence {
		head := x.table.heads[h]
		if head == noCell || len(dst.live) == 0 {
			return
		}
		dst.nextStamp()
		for r := head; r != noCell; {
			c := x.table.at(r)
			dst.seen[c.owner()] = sighting{dst.stamp, c.tiers()}
			r = c.next
		}
		dst.advance()
	}
}

// begin puts every known worker at the start of the prompt.
func (d *Matches) begin(members []member, owners int) {
	d.Workers = d.Workers[:0]
	d.live = d.live[:0]
	for i, m := range members {
		d.Workers = append(d.Workers, Match{Worker: m.worker})
		d.live = append(d.live, walker{at: int32(i), own: m.own, pool: m.pool})
	}
	if n := owners - len(d.seen); n > 0 {
		d.seen = append(d.seen, make([]sighting, n)...)
	}
}

func (d *Matches) nextStamp() {
	if d.stamp++; d.stamp == 0 {
		clear(d.seen)
		d.stamp = 1
	}
}

// advance moves every live worker over one block and drops those that end.
func (d *Matches) advance() {
	live := d.live[:0]
	for _, w := range d.live {
		// A pool has no device; its word on that tier would be wrong.
		tiers := d.tiersOf(w.own) | d.tiersOf(w.pool).Without(kv.TierDevice)
		for w.tier < kv.NumTiers && !tiers.Has(w.tier) {
			w.tier++
		}
		if w.tier == kv.NumTiers {
			continue
		}
		d.Workers[w.at].Hits[w.tier]++
		live = append(live, w)
	}
	d.live = live
}

func (d *Matches) tiersOf(id ownerID) kv.TierMask {
	if s := d.seen[id]; s.stamp == d.stamp {
		return s.tiers
	}
	return 0
}
