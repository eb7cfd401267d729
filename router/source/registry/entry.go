package registry

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

const (
	// maxRegistered bounds all registered ranks. maxRanks bounds the ranks of one worker.
	maxRegistered = 1 << 14
	maxRanks      = 1024
	// maxFirstRank bounds the number of a worker's first rank.
	maxFirstRank = 1<<16 - 1
	maxBlockSize = 1 << 16
	// maxCardValue bounds the numbers of a card.
	maxCardValue = 1<<53 - 1
)

// Registration describes a worker without a publisher.
type Registration struct {
	WorkerID uint64 `json:"worker_id"`
	// Ranks is the number of data-parallel ranks, numbered from FirstRank; 0 means 1.
	Ranks     uint32 `json:"ranks"`
	FirstRank uint32 `json:"first_rank"`
	// Model and BlockSize, in tokens, say which requests the worker serves.
	Model     string `json:"model"`
	BlockSize uint32 `json:"block_size"`
	// Endpoint is the URL for requests to the engine; it may be empty. The URL is public,
	// so it must have no user and no password.
	Endpoint string `json:"endpoint"`
	// Pool is the id of the worker's pool, 0 for none. Namespace has 32 hexadecimal
	// digits; it may be empty.
	Pool      uint64 `json:"pool"`
	Namespace string `json:"namespace"`
	// DeviceBlocks is the capacity of a rank's device; 0 is unknown.
	DeviceBlocks uint64 `json:"device_blocks"`
	// TotalKVBlocks is Dynamo's name of DeviceBlocks.
	TotalKVBlocks uint64 `json:"total_kv_blocks"`
	// MaxBatchedTokens is the most tokens that a rank computes in one step; 0 is unknown.
	MaxBatchedTokens uint64 `json:"max_num_batched_tokens"`
	// Taints are labels that requests may require or prefer; see kvevent.NewTaints.
	Taints []string `json:"taints"`
	// IsEagle is true when the engine hashes pairs of tokens; see kv.BlockTokens.
	IsEagle bool `json:"is_eagle"`
}

// Validate reports the first field that is out of range.
func (g *Registration) Validate() error {
	switch {
	case g.WorkerID == 0:
		return fmt.Errorf("worker_id: 0 is not in 1..%d", uint64(1<<64-1))
	case g.Ranks > maxRanks:
		return fmt.Errorf("ranks: %d is not in 0..%d", g.Ranks, maxRanks)
	case g.FirstRank > maxFirstRank:
		return fmt.Errorf("first_rank: %d is not in 0..%d", g.FirstRank, maxFirstRank)
	case g.Model == "" || len(g.Model) > kvevent.MaxModel:
		return fmt.Errorf("model: %d bytes, want 1 to %d", len(g.Model), kvevent.MaxModel)
	case strings.ContainsFunc(g.Model, unicode.IsControl):
		return fmt.Errorf("model: %.200q has a control character", g.Model)
	case g.BlockSize == 0 || g.BlockSize > maxBlockSize:
		return fmt.Errorf("block_size: %d is not in 1..%d", g.BlockSize, maxBlockSize)
	case len(g.Endpoint) > kvevent.MaxEndpoint:
		return fmt.Errorf("endpoint: %d bytes, want at most %d", len(g.Endpoint), kvevent.MaxEndpoint)
	case g.DeviceBlocks > maxCardValue:
		return fmt.Errorf("device_blocks: %d is not in 0..%d", g.DeviceBlocks, uint64(maxCardValue))
	case g.TotalKVBlocks > maxCardValue:
		return fmt.Errorf("total_kv_blocks: %d is not in 0..%d", g.TotalKVBlocks, uint64(maxCardValue))
	case g.DeviceBlocks != 0 && g.TotalKVBlocks != 0 && g.DeviceBlocks != g.TotalKVBlocks:
		return fmt.Errorf("total_kv_blocks: %d contradicts device_blocks, which is %d", g.TotalKVBlocks, g.DeviceBlocks)
	case g.MaxBatchedTokens > maxCardValue:
		return fmt.Errorf("max_num_batched_tokens: %d is not in 0..%d", g.MaxBatchedTokens, uint64(maxCardValue))
	}
	if u, err := url.Parse(g.Endpoint); g.Endpoint != "" && (err != nil || u.Scheme == "" || u.Host == "" || u.User != nil) {
		return fmt.Errorf("endpoint: %s: want a URL with a scheme and a host, without user and password", source.ShownURL(g.Endpoint))
	}
	if _, err := g.namespace(); err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	_, err := kvevent.NewTaints(g.Taints)
	return err
}

func (g *Registration) namespace() (kv.NamespaceID, error) {
	if g.Namespace == "" {
		return kv.NamespaceID{}, nil
	}
	return kv.ParseNamespaceID(g.Namespace)
}

// ranks returns the number of ranks, at least 1.
func (g *Registration) ranks() uint32 { return max(1, g.Ranks) }

// hasRank reports whether a rank is one of the worker's.
func (g *Registration) hasRank(rank kv.DPRank) bool {
	return uint32(rank) >= g.FirstRank && uint32(rank)-g.FirstRank < g.ranks()
}

// workers returns the data-parallel ranks of the registered worker, in order.
func (g *Registration) workers() []kv.Worker {
	all := make([]kv.Worker, g.ranks())
	for i := range all {
		all[i] = kv.Worker{ID: kv.WorkerID(g.WorkerID), Rank: kv.DPRank(g.FirstRank) + kv.DPRank(i)}
	}
	return all
}

// registered is one rank of a registered worker.
type registered struct {
	Registration
	// source is source.FromFile or source.FromHTTP.
	source string
	// expires is when the registration ends; the zero time means never. ended is true
	// after the end until the goodbye is sent.
	expires time.Time
	ended   bool
	// publisher is the publisher id in the rank's announcements; 0 before the first.
	publisher uint64
}

// announcement returns an announcement of rank w of a registered worker. To the router the rank is a
// publisher without events and blocks (Silent).
func (e *registered) announcement(w kv.Worker, health kvevent.Health) kvevent.Announcement {
	ns, err := e.namespace()
	taints, taintsErr := kvevent.NewTaints(e.Taints)
	if err = errors.Join(err, taintsErr); err != nil {
		panic("BUG: a registration was not validated: " + err.Error())
	}
	return kvevent.Announcement{
		PublisherID: e.publisher, Owner: kv.WorkerOwner(w), Pool: e.Pool, Namespace: ns,
		Model: e.Model, BlockSize: e.BlockSize, Health: health,
		Card: kvevent.ModelCard{
			Endpoint: e.Endpoint, Ranks: e.ranks(), DeviceBlocks: max(e.DeviceBlocks, e.TotalKVBlocks),
			MaxBatchedTokens: e.MaxBatchedTokens, Taints: taints, Eagle: e.IsEagle, Silent: true, Source: e.source,
		},
	}
}

// upsertLocked registers rank w with g until expires, or renews the registration. A change
// of model or block size gives the rank another publisher id, because the router accepts
// one model per publisher. The caller holds r.mu.
func (r *Source) upsertLocked(w kv.Worker, g *Registration, source string, expires time.Time) {
	e := r.entries[w]
	if e == nil {
		e = &registered{}
		r.entries[w] = e
	}
	if e.Model != g.Model || e.BlockSize != g.BlockSize {
		e.publisher = 0 // the next announcement gets a new id
	}
	e.Registration, e.source, e.expires, e.ended = *g, source, expires, false
}

// checkRegistrationLocked returns an error if worker g cannot be registered: the other source has
// the worker, or there would be too many ranks. source is FromFile or FromHTTP.
func (r *Source) checkRegistrationLocked(g *Registration, source string) error {
	others := len(r.entries) // ranks of other workers
	for w, e := range r.entries {
		if uint64(w.ID) != g.WorkerID {
			continue
		}
		others--
		if e.source != source && !e.ended {
			return fmt.Errorf("worker_id: %d is already registered by %s", g.WorkerID, e.source)
		}
	}
	if others+int(g.ranks()) > maxRegistered {
		return fmt.Errorf("ranks: %d registered ranks in all, want at most %d", others+int(g.ranks()), maxRegistered)
	}
	return nil
}
