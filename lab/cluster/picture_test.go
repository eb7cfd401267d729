package cluster

import (
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

func exampleTruth() ([]engine.State, []AgentPool) {
	const aa, bb = "00000000000000aa", "00000000000000bb"
	return []engine.State{{WorkerID: 1, Blocks: []string{aa, bb}}, {WorkerID: 2, Rank: 1, Blocks: []string{aa}}},
		[]AgentPool{{Pool: 42, Blocks: []Block{{Hash: aa, Tiers: []string{"host_pinned", "disk"}}}}}
}

// row returns one element of a router's dump.
func row(o kv.Owner, tier kv.Tier, hashes ...kv.SequenceHash) (r kvevent.StoredJSON) {
	e := kvevent.RouterEvent{Kind: kvevent.Stored, Owner: o, Tier: tier}
	for _, h := range hashes {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h})
	}
	r.Set(&e)
	return r
}

func exampleDump() RouterDump {
	one, two := kv.WorkerOwner(kv.Worker{ID: 1}), kv.WorkerOwner(kv.Worker{ID: 2, Rank: 1})
	return RouterDump{
		row(one, kv.TierDevice, 0xaa, 0xbb), row(two, kv.TierDevice, 0xaa),
		row(kv.PoolOwner(42), kv.TierHost, 0xaa), row(kv.PoolOwner(42), kv.TierDisk, 0xaa),
	}
}

// Whatever the router gets wrong about owner, rank, tier or block is a difference,
// on the side where it is.
func TestCompareSeesEveryKindOfDifference(t *testing.T) {
	for name, c := range map[string]struct {
		spoil         func(d RouterDump) RouterDump
		lost, phantom int
	}{
		"nothing": {func(d RouterDump) RouterDump { return d }, 0, 0},
		"block unknown": {func(d RouterDump) RouterDump {
			return append(d[1:], row(d[0].Owner(), kv.TierDevice, 0xaa))
		}, 1, 0},
		"tier unknown":  {func(d RouterDump) RouterDump { return append(d[:2], d[3]) }, 1, 0},
		"owner unknown": {func(d RouterDump) RouterDump { return d[:2] }, 2, 0},
		"block made up": {func(d RouterDump) RouterDump {
			return append(d, row(d[1].Owner(), kv.TierDevice, 0xcc))
		}, 0, 1},
		"wrong tier": {func(d RouterDump) RouterDump {
			return append(d[1:], row(d[0].Owner(), kv.TierDisk, 0xaa), row(d[0].Owner(), kv.TierDevice, 0xbb))
		}, 1, 1},
		"wrong rank":  {func(d RouterDump) RouterDump { d[1].Event.Rank = 0; return d }, 1, 1},
		"wrong kind":  {func(d RouterDump) RouterDump { d[2].OwnerKind, d[3].OwnerKind = "", ""; return d }, 2, 2},
		"wrong owner": {func(d RouterDump) RouterDump { d[0].WorkerID = 3; return d }, 2, 2},
	} {
		d := Compare(Held(exampleTruth()), c.spoil(exampleDump()).residencies())
		if d.Lost != c.lost || d.Phantom != c.phantom || d.Compared != 5+c.phantom {
			t.Errorf("%s: lost %d, phantom %d, compared %d; want %d, %d, %d", name, d.Lost, d.Phantom, d.Compared, c.lost, c.phantom, 5+c.phantom)
		}
		if len(d.First) != d.Diverged() {
			t.Errorf("%s: describes %q", name, d.First)
		}
	}
}

// TestBlocksOfAPoolCountInTheGroupsOfEvents: a pool's dump numbers groups as the engine does, events begin with
// the primary group.
func TestBlocksOfAPoolCountInTheGroupsOfEvents(t *testing.T) {
	pool := AgentPool{
		Pool:   42,
		Groups: kvgroup.Groups{{Kind: kvgroup.Sliding, Window: 8, BlockSize: 4}, {Kind: kvgroup.Full, BlockSize: 4}},
		Blocks: []Block{
			{Hash: "00000000000000aa", Group: 0, Tiers: []string{"disk"}}, {Hash: "00000000000000bb", Group: 1, Tiers: []string{"disk"}},
		},
	}
	window := kvevent.RouterEvent{Kind: kvevent.Stored, Owner: kv.PoolOwner(42), Tier: kv.TierDisk, Group: 1, Blocks: []kvevent.StoredBlock{{Hash: 0xaa}}}
	var grouped kvevent.StoredJSON
	grouped.Set(&window)
	believed := RouterDump{grouped, row(kv.PoolOwner(42), kv.TierDisk, 0xbb)}.residencies()
	if d := Compare(Held(nil, []AgentPool{pool}), believed); d.Compared != 2 || d.Diverged() != 0 {
		t.Errorf("%+v", d)
	}
}

// settledPicture returns a picture in which all is well; tests spoil it.
func settledPicture() *Picture {
	return &Picture{
		Engines: []engine.State{{WorkerID: 1, Idle: true}},
		Agents: []AgentStats{{Quiet: true, Streams: []AgentStream{
			{Owner: "worker 1/0", PublisherID: "p", LastEventID: 7, Health: HealthExact},
		}}},
		Feeds: []RouterFeed{{PublisherID: "p", Owner: "worker 1/0", Cursor: 7, Announced: 7, Health: HealthExact, DigestOK: true}},
	}
}

// What is compared while something moves, or on a router's bare word, proves
// nothing.
func TestNothingSettlesBeforeItHas(t *testing.T) {
	for want, spoil := range map[string]func(v *Picture){
		"":                         func(*Picture) {},
		"engine-1 is busy":         func(v *Picture) { v.Engines[0].Idle = false },
		"node-1 is busy":           func(v *Picture) { v.Agents[0].Quiet = false },
		"the router is at event 6": func(v *Picture) { v.Feeds[0].Cursor = 6 },
		"heard of 6":               func(v *Picture) { v.Feeds[0].Announced = 6 },
		"follows 2 feeds": func(v *Picture) {
			v.Feeds = append(v.Feeds, RouterFeed{PublisherID: "q", Health: HealthExact, DigestOK: true})
		},
		"the stream of worker 1/0 is":                         func(v *Picture) { v.Agents[0].Streams[0].Health = "degraded" },
		"feed of worker 1/0 is":                               func(v *Picture) { v.Feeds[0].Health = "degraded" },
		"2 of 3 gaps in the feed of worker 1/0 were repaired": func(v *Picture) { v.Feeds[0].Gaps, v.Feeds[0].Repaired = 3, 2 },
		"router: no feed of worker 1/0":                       func(v *Picture) { v.Agents[0].Streams[0].PublisherID = "q" },
		"the digest of worker 1/0 differs":                    func(v *Picture) { v.Feeds[0].DigestOK = false },
		"no agent has a stream of worker 1/0":                 func(v *Picture) { v.Agents[0].Streams[0].Owner = "worker 2/0" },
	} {
		v := settledPicture()
		p := Parts{Agents: []*Agent{{Endpoint: Endpoint{Name: "node-1"}}}, Engines: []Endpoint{{Name: "engine-1"}}, Router: new(Router), Repaired: true}
		spoil(v)
		if got := v.moving(p) + strings.Join(v.inexact(p), ""); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("the picture says %q, want %q", got, want)
		}
	}
}
