package evict

import (
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Node is host memory in front of a disk, each with an Evictor, and a filter that chooses what is written
// to disk. Like the block manager it serves a prefix from both, copies what it reads from disk into host
// memory, keeps the disk's copy, and tells both orders of every use of a block that they have.
type Node struct {
	host, disk *Cache
	filter     func(kv.SequenceHash) bool
	budget     *policy.WriteBudget
	now        time.Time
	// Written counts the blocks that were written to disk.
	Written int
}

// Access serves and stores a request. It returns how many leading blocks of the prompt the node had.
func (n *Node) Access(a Access) (hits int) {
	n.host.tick++
	n.disk.tick = n.host.tick
	inHost, onDisk := registry.NoRef, registry.NoRef // the slots of the block before
	prefix, room := true, true
	for i, hash := range a.Sequence {
		h, isHost := n.host.find(hash)
		d, isDisk := n.disk.find(hash)
		prefix = prefix && i < a.Prompt && (isHost || isDisk)
		if prefix {
			hits++
			if isHost {
				n.host.touch(h)
			}
			if isDisk {
				n.disk.touch(d)
			}
		}
		if !isHost && room {
			at, ok := n.host.room(inHost)
			if room = ok; ok {
				h, isHost = n.host.store(at, inHost, hash), true
			}
		}
		if isHost && !isDisk && n.writes(hash) {
			at, ok := n.disk.room(onDisk)
			if n.budget != nil {
				n.budget.Settle(blockBytes, ok, n.now)
			}
			if ok {
				d, isDisk = n.disk.store(at, onDisk, hash), true
				n.Written++
			}
		}
		inHost, onDisk = orNone(h, isHost), orNone(d, isDisk)
	}
	return hits
}

// writes reports whether a block in host memory is written to disk now.
func (n *Node) writes(hash kv.SequenceHash) bool {
	return n.filter(hash) && (n.budget == nil || n.budget.Reserve(blockBytes, n.now))
}

func orNone(ref registry.Ref, ok bool) registry.Ref {
	if !ok {
		return registry.NoRef
	}
	return ref
}

// find returns the slot of a block.
func (c *Cache) find(hash kv.SequenceHash) (ref registry.Ref, ok bool) {
	at, ok := c.blocks[hash]
	return registry.MakeRef(0, at), ok
}

// Tiering is a way to run a node: what leaves each tier first, and what is written to disk.
type Tiering struct {
	Name       string
	Host, Disk policy.Rule
	// Min is the count of a block that the frequency filter lets pass, 0 without a filter. Budget is the
	// share of the blocks that are asked for that may be written, 0 without a budget.
	Min    uint32
	Budget float64
}

// Tierings are the compared ways. The first writes all and evicts by age. Those with a filter ("freq", "f"), a
// budget or both have one rule for both tiers.
func Tierings() []Tiering {
	lru, adaptive := policy.RuleLRU, policy.RuleAdaptive
	all := []Tiering{
		{Name: "lru/lru", Host: lru, Disk: lru},
		{Name: "lru/adapt", Host: lru, Disk: adaptive},
		{Name: "adapt/lru", Host: adaptive, Disk: lru},
		{Name: "adapt/adapt", Host: adaptive, Disk: adaptive},
	}
	for _, r := range []struct {
		name string
		rule policy.Rule
	}{{"lru", lru}, {"adapt", adaptive}} {
		all = append(all,
			Tiering{Name: r.name + " freq", Host: r.rule, Disk: r.rule, Min: 2},
			Tiering{Name: r.name + " 1/5", Host: r.rule, Disk: r.rule, Budget: 0.2},
			Tiering{Name: r.name + " 1/10", Host: r.rule, Disk: r.rule, Budget: 0.1},
			Tiering{Name: r.name + " 1/20", Host: r.rule, Disk: r.rule, Budget: 0.05},
			Tiering{Name: r.name + " f+1/20", Host: r.rule, Disk: r.rule, Min: 2, Budget: 0.05})
	}
	return all
}

const (
	// blockBytes is the size of a block, so that a day's budget is at least the least one.
	blockBytes = 1 << 24
	// span is the virtual time of a run. Counts of the frequency filter decay in it, and a budget flows.
	span = time.Hour
	// hostShare is the host tier's size over the disk's.
	hostShare = 0.25
)

// newNode returns a node with a disk of some blocks, for accesses that take a span and ask for so many
// blocks.
func newNode(t Tiering, capacity, asked int) (*Node, error) {
	n := &Node{now: time.Unix(0, 0)}
	n.host = NewCache(max(1, int(hostShare*float64(capacity))), t.Host.New())
	n.disk = NewCache(capacity, t.Disk.New())
	options := policy.FrequencyOptions{Min: max(1, t.Min), Now: func() time.Time { return n.now }}
	if t.Budget > 0 {
		perDay := t.Budget * float64(asked) * blockBytes * (24 * time.Hour).Hours() / span.Hours()
		var err error
		if n.budget, err = policy.NewWriteBudget(max(policy.LeastWriteBudget, uint64(perDay)), n.now); err != nil {
			return nil, err
		}
		options.Budget = n.budget
	}
	filter, err := policy.NewFrequencyFilter(options)
	if err != nil {
		return nil, err
	}
	n.filter = filter.ShouldOffload
	return n, nil
}

// run serves all accesses and returns the hits of each, and the blocks that were written after the first
// ones.
func (n *Node) run(accesses []Access, first int) (hits []int, written int) {
	begin := n.now
	for i, a := range accesses {
		if i == first {
			written = -n.Written
		}
		n.now = begin.Add(time.Duration(float64(span) * float64(i) / float64(len(accesses))))
		hits = append(hits, n.Access(a))
	}
	return hits, written + n.Written
}
