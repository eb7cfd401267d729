package policy

import (
	"math"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// mix scatters a number.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// boundedHash hashes the first blocks of the prompt to a worker. A worker with more than 1.25 of the
// mean load is passed over. (Mirrokni, Thorup, Zadimoghaddam: consistent hashing with bounded loads.)
type boundedHash struct{}

// hashedBlocks is how much of a prompt is hashed. More would part the turns of a conversation.
const hashedBlocks = 8

// Select implements schedule.Selector. Workers are tried in the order of their rendezvous hash.
func (*boundedHash) Select(in *schedule.Selection) (int, error) {
	key := uint64(0)
	if n := min(hashedBlocks, len(in.Request.Sequence)); n > 0 {
		key = uint64(in.Request.Sequence[n-1])
	}
	sum := 1.0
	for k := range in.Len() {
		sum += float64(in.Loads.Requests[in.At(k)])
	}
	limit := math.Ceil(1.25 * sum / float64(in.Len()))
	best, highest := in.At(0), uint64(0)
	for k := range in.Len() {
		m := in.At(k)
		if float64(in.Loads.Requests[m])+1 > limit {
			continue
		}
		if h := mix(key ^ mix(uint64(in.Members.List[m].Worker.ID))); h >= highest {
			best, highest = m, h
		}
	}
	return best, nil
}

// sticky keeps the requests of a session on one worker of each role.
type sticky struct {
	c        Context
	rand     *rand.Rand
	workerOf map[sessionRole]kv.Worker
}

// sessionRole is a session and the first of the workers that may be chosen: workers of a role are chosen among
// themselves.
type sessionRole struct{ session, role int }

func newSticky(c Context) *sticky {
	return &sticky{c, rand.New(rand.NewPCG(c.Seed, 8)), make(map[sessionRole]kv.Worker)}
}

// Select implements schedule.Selector.
func (s *sticky) Select(in *schedule.Selection) (int, error) {
	session := sessionRole{s.c.View.Session(), in.At(0)}
	if w, ok := s.workerOf[session]; ok {
		if m, found := find(in, w); found {
			return m, nil
		}
	}
	m := lowest(in, s.rand, func(m int) float64 { return float64(in.Loads.Requests[m]) })
	s.workerOf[session] = in.Members.List[m].Worker
	return m, nil
}

// find returns the member number of a worker that may be chosen.
func find(in *schedule.Selection, w kv.Worker) (member int, ok bool) {
	if member, ok = in.Members.Find(w); ok {
		_, ok = in.Find(int32(member))
	}
	return member, ok
}

// cacheAware is smg's rule: out of balance (more than 64 requests and half again as many between the
// most and the least loaded worker) the least loaded worker; else the worker with the longest match in
// a tree of what was sent, if that is more than 0.3 of the prompt; else the worker with the smallest
// tree. Workers of a role have a tree of their own.
type cacheAware struct {
	rand *rand.Rand
	// sent has the worker that each block was last sent to, by the first worker that could be chosen. size counts
	// the blocks of each worker.
	sent map[int]map[kv.SequenceHash]kv.Worker
	size map[kv.Worker]int
}

func newCacheAware(c Context) *cacheAware {
	return &cacheAware{rand.New(rand.NewPCG(c.Seed, 9)), make(map[int]map[kv.SequenceHash]kv.Worker), make(map[kv.Worker]int)}
}

// Select implements schedule.Selector.
func (s *cacheAware) Select(in *schedule.Selection) (int, error) {
	sent := s.sent[in.At(0)]
	if sent == nil {
		sent = make(map[kv.SequenceHash]kv.Worker)
		s.sent[in.At(0)] = sent
	}
	m := s.choose(in, sent)
	w := in.Members.List[m].Worker
	for _, h := range in.Request.Sequence {
		if old, ok := sent[h]; ok {
			s.size[old]--
		}
		sent[h] = w
		s.size[w]++
	}
	return m, nil
}

func (s *cacheAware) choose(in *schedule.Selection, sent map[kv.SequenceHash]kv.Worker) int {
	least, most := int32(math.MaxInt32), int32(0)
	for k := range in.Len() {
		n := in.Loads.Requests[in.At(k)]
		least, most = min(least, n), max(most, n)
	}
	if most-least > 64 && float64(most) > 1.5*float64(least) {
		return lowest(in, s.rand, func(m int) float64 { return float64(in.Loads.Requests[m]) })
	}
	matched, on := 0, kv.Worker{}
	for _, h := range in.Request.Sequence {
		w, ok := sent[h]
		if !ok {
			break
		}
		matched, on = matched+1, w
	}
	if m, ok := find(in, on); ok && float64(matched) > 0.3*float64(in.Request.Blocks()) {
		return m
	}
	return lowest(in, s.rand, func(m int) float64 { return float64(s.size[in.Members.List[m].Worker]) })
}
