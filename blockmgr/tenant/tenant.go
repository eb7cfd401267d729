package tenant

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// MaxTenants bounds the tenants of all Set calls together, MaxSalts the salts of one tenant.
	MaxTenants = 4096
	MaxSalts   = 1024
	// MaxModels bounds the models with a limit, and those in which one tenant has a limit.
	MaxModels = 1024
	// MaxTTL and MinTTL bound Tenant.TTL.
	MinTTL = time.Second
	MaxTTL = 365 * 24 * time.Hour
	// frontDoorPrefix begins the salts that the router's front door makes: the tenant's name and ":" or
	// "#" follow.
	frontDoorPrefix = "blockyard-tenant:"
)

// AllModels names what a tenant may have and has of all models together.
const AllModels = ""

// Tenant is what a tenant may have.
type Tenant struct {
	// Name is 1 to 64 letters, digits, ".", "_" or "-", as in a keys file of the front door.
	Name string
	// Salts are the tenant's cache salts, beside those that the front door makes.
	Salts []string
	// HostBytes and DiskBytes bound the slots of the tenant's blocks in a tier; 0 is no bound.
	HostBytes, DiskBytes uint64
	// Models bound the slots of the tenant's blocks of single models. They count in the bound of all models.
	Models map[string]Limit
	// TTL is how long a block lives after it was stored; 0 is for ever. Then, and whenever it leaves a
	// tier before, its bytes are overwritten with zeros.
	TTL time.Duration
}

// SetLimit changes the bound of a tier for one model, or for AllModels. 0 is no bound.
func (t *Tenant) SetLimit(model string, kind kv.Tier, bytes uint64) {
	if model == AllModels {
		l := Limit{t.HostBytes, t.DiskBytes}.With(kind, bytes)
		t.HostBytes, t.DiskBytes = l.HostBytes, l.DiskBytes
		return
	}
	t.Models = WithLimit(t.Models, model, kind, bytes) // a copy: another Tenant may have the map too
}

// Index names a tenant in a Table; 0 is none.
type Index uint16

// unlisted is the index of every owner that is no tenant's.
const unlisted Index = 1

// Account is what a Table knows of one tenant. A nil Account is that of no tenant.
type Account struct {
	name string
	// owner names the tenant in records of blocks, timed in records of those with a time to live.
	owner, timed uint64

	// mu guards shares: what the tenant may have and has of each model, and of AllModels. A share without
	// a limit and without a block is left out.
	mu     sync.Mutex
	shares map[string]*share
	ttl    atomic.Int64
	// erases stays true once the tenant had a time to live: its blocks of that time are in the tiers.
	erases, listed atomic.Bool
	// expired counts blocks whose time was up.
	expired atomic.Uint64
}

// share is what a tenant may have and has in each tier, of one model or of all.
type share struct{ limit, used [registry.NumLevels]uint64 }

// TimedOwner returns the owner in records of slots whose bytes must be overwritten, also by an agent that
// knows no such tenant.
func (a *Account) TimedOwner() uint64 { return a.timed }

// Timed reports whether an owner of the tenant is that of blocks with a time to live.
func (a *Account) Timed(owner uint64) bool { return a != nil && owner == a.timed }

// Limit returns the bytes that the tenant may have of a model, or of AllModels, in a tier; 0 for no bound.
func (a *Account) Limit(model string, lv registry.Level) uint64 { return a.of(model).limit[lv] }

// Used returns the bytes of the slots with a block of the tenant in a tier, of a model or of AllModels.
func (a *Account) Used(model string, lv registry.Level) uint64 { return a.of(model).used[lv] }

func (a *Account) of(model string) share {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.shares[model]; s != nil {
		return *s
	}
	return share{}
}

// Over reports whether more bytes in a tier would be beyond the limit of a model, or of AllModels.
func (a *Account) Over(model string, lv registry.Level, more uint64) bool {
	s := a.of(model)
	return s.limit[lv] != 0 && s.used[lv]+more > s.limit[lv]
}

// Take counts bytes of a tier as used by blocks of a model, Give as used no more.
func (a *Account) Take(model string, lv registry.Level, bytes uint64) { a.add(model, lv, bytes) }

// Give ends Take.
func (a *Account) Give(model string, lv registry.Level, bytes uint64) { a.add(model, lv, -bytes) }

func (a *Account) add(model string, lv registry.Level, bytes uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, of := range [...]string{AllModels, model} {
		a.changeLocked(of, func(s *share) { s.used[lv] += bytes })
	}
}

// changeLocked changes the share of a model or of AllModels.
func (a *Account) changeLocked(model string, change func(*share)) {
	s := a.shares[model]
	if s == nil {
		s = &share{}
		a.shares[model] = s
	}
	if change(s); *s == (share{}) {
		delete(a.shares, model)
	}
}

// TTL returns how long a block that is stored now lives, 0 for ever.
func (a *Account) TTL() time.Duration { return time.Duration(a.ttl.Load()) }

// Erases reports whether slots with blocks of the tenant are overwritten before they are used again.
func (a *Account) Erases() bool { return a != nil && a.erases.Load() }

// CountExpired counts a block whose time was up.
func (a *Account) CountExpired() {
	if a != nil { // the copy that left last had come before its salt was the tenant's
		a.expired.Add(1)
	}
}

// Table has the tenants of a node. Make one with NewTable.
type Table struct {
	start time.Time
	mu    sync.RWMutex
	// byOwner has both owners of each account.
	byOwner map[uint64]Index
	salts   map[string]uint64
	tenants []Tenant
	// accounts are those of all indices. It is replaced when it grows.
	accounts atomic.Pointer[[]*Account]
}

// NewTable returns a table without tenants.
func NewTable() *Table {
	t := &Table{start: time.Now(), byOwner: map[uint64]Index{}, salts: map[string]uint64{}}
	gone := &Account{name: "(not configured)", timed: 1, shares: map[string]*share{}} // any owner that nobody has
	gone.erases.Store(true)
	t.accounts.Store(&[]*Account{nil, gone})
	return t
}

// timedSeed is the seed of the hash that names a tenant in records of blocks with a time to live.
const timedSeed = 1

// Age is a time of the clock that all pools with a table share, in tenths of a second from 1 on. 0 is
// before the table was made.
type Age uint32

// Now returns the time on that clock.
func (t *Table) Now() Age { return Age(time.Since(t.start)/(100*time.Millisecond)) + 1 }

// ownerOf returns the hash of a tenant's name, timedOwnerOf that for blocks with a time to live. Both are
// stored and never change.
func ownerOf(name string) uint64 { return cmp.Or(xxh3.HashString(name), 1) }

func timedOwnerOf(name string) uint64 { return cmp.Or(xxh3.HashStringSeed(name, timedSeed), 1) }

// state is what a Set makes of a table.
type state struct {
	byOwner  map[uint64]Index
	salts    map[string]uint64
	accounts []*Account
	listed   map[Index]*Tenant
}

// Check returns the error that Set would return now.
func (t *Table) Check(tenants []Tenant) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, err := t.next(tenants)
	return err
}

// Set replaces the tenants. Blocks keep the tenant that they were stored for. The error names the tenant
// and the field; nothing has changed then.
func (t *Table) Set(tenants []Tenant) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.next(tenants)
	if err != nil {
		return err
	}
	// Each account changes once: pools read it meanwhile, and a block must not miss its time to live.
	for i := unlisted + 1; int(i) < len(n.accounts); i++ {
		if listed := n.listed[i]; listed != nil {
			n.accounts[i].set(listed, true)
		} else {
			n.accounts[i].set(&Tenant{}, false)
		}
	}
	t.byOwner, t.salts, t.tenants = n.byOwner, n.salts, slices.Clone(tenants)
	t.accounts.Store(&n.accounts)
	return nil
}

// next returns what the table has after a Set. It changes nothing.
func (t *Table) next(tenants []Tenant) (*state, error) {
	salts, err := check(tenants)
	if err != nil {
		return nil, err
	}
	accounts := slices.Clone(*t.accounts.Load())
	byOwner := maps.Clone(t.byOwner)
	listed := map[Index]*Tenant{}
	for i := range tenants {
		name := tenants[i].Name
		owner, timed := ownerOf(name), timedOwnerOf(name)
		for _, o := range []uint64{owner, timed} {
			if at, ok := byOwner[o]; ok && accounts[at].name != name {
				return nil, fmt.Errorf("tenant %q: its name has the hash of %q; choose another name", name, accounts[at].name)
			}
		}
		if _, known := byOwner[owner]; !known {
			byOwner[owner], byOwner[timed] = Index(len(accounts)), Index(len(accounts))
			accounts = append(accounts, &Account{name: name, owner: owner, timed: timed, shares: map[string]*share{}})
		}
		listed[byOwner[owner]] = &tenants[i]
	}
	if n := len(accounts) - 2; n > MaxTenants {
		return nil, fmt.Errorf("tenants: %d names since the start, want at most %d", n, MaxTenants)
	}
	return &state{byOwner, salts, accounts, listed}, nil
}

func (a *Account) set(t *Tenant, listed bool) {
	a.setLimits(t)
	a.ttl.Store(int64(t.TTL))
	a.listed.Store(listed)
	if t.TTL > 0 {
		a.erases.Store(true)
	}
}

// setLimits replaces the limits of all shares.
func (a *Account) setLimits(t *Tenant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	limits := maps.Collect(maps.All(t.Models))
	limits[AllModels] = Limit{t.HostBytes, t.DiskBytes}
	for model := range a.shares {
		limits[model] = limits[model] // one without a limit loses the limit that it had
	}
	for model, l := range limits {
		a.changeLocked(model, func(s *share) { s.limit = [...]uint64{registry.Host: l.HostBytes, registry.Disk: l.DiskBytes} })
	}
}

// check checks tenants and returns the owner of each salt.
func check(tenants []Tenant) (salts map[string]uint64, err error) {
	salts = map[string]uint64{}
	names := map[string]bool{}
	for i := range tenants {
		n := &tenants[i]
		if !isName(n.Name) {
			return nil, fmt.Errorf("tenant %.80q: want 1 to 64 letters, digits, '.', '_' or '-', the first no sign", n.Name)
		}
		if names[n.Name] {
			return nil, fmt.Errorf("tenant %q: occurs twice", n.Name)
		}
		names[n.Name] = true
		if n.TTL != 0 && (n.TTL < MinTTL || n.TTL > MaxTTL) {
			return nil, fmt.Errorf("tenant %q: time to live %v: want 0 (for ever) or %v to %v", n.Name, n.TTL, MinTTL, MaxTTL)
		}
		if _, unnamed := n.Models[AllModels]; unnamed || len(n.Models) > MaxModels {
			return nil, fmt.Errorf("tenant %q: limits of %d models: want at most %d, each with the name of a model", n.Name, len(n.Models), MaxModels)
		}
		if len(n.Salts) > MaxSalts {
			return nil, fmt.Errorf("tenant %q: %d salts, want at most %d", n.Name, len(n.Salts), MaxSalts)
		}
		for _, salt := range n.Salts {
			if salt == "" || strings.HasPrefix(salt, frontDoorPrefix) {
				return nil, fmt.Errorf("tenant %q: salt %.40q: want one that is not empty and does not begin with %s", n.Name, salt, frontDoorPrefix)
			}
			bounded := kv.BoundedName(salt)
			if _, ok := salts[bounded]; ok {
				return nil, fmt.Errorf("tenant %q: one of its salts occurs twice", n.Name) // the salt is not shown: it keeps tenants apart
			}
			salts[bounded] = ownerOf(n.Name)
		}
	}
	return salts, nil
}

// isName reports whether a tenant may have the name.
func isName(name string) bool {
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return len(name) >= 1 && len(name) <= 64
}

// OwnerOf returns the owner of the blocks of requests with a cache salt, 0 for none.
func (t *Table) OwnerOf(salt string) uint64 {
	if salt == "" {
		return 0
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(t.tenants) == 0 {
		return 0
	}
	if owner, ok := t.salts[kv.BoundedName(salt)]; ok {
		return owner
	}
	rest, ok := strings.CutPrefix(salt, frontDoorPrefix)
	end := strings.IndexAny(rest, ":#")
	if !ok || end < 0 {
		return 0
	}
	owner := ownerOf(rest[:end])
	if at, known := t.byOwner[owner]; !known || !(*t.accounts.Load())[at].listed.Load() {
		return 0
	}
	return owner
}

// Index returns the index of an owner: 0 for 0, and that of a tenant whose blocks are erased for an owner
// that is no tenant's.
func (t *Table) Index(owner uint64) Index {
	if owner == 0 {
		return 0
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if at, ok := t.byOwner[owner]; ok {
		return at
	}
	return unlisted
}

// RecordOwner returns the owner in the record of a block that is stored now for owner.
func (t *Table) RecordOwner(owner uint64) uint64 {
	switch a := t.At(t.Index(owner)); {
	case a == nil || a.owner == 0: // no tenant, or one that is not configured
		return owner
	case a.TTL() > 0:
		return a.timed
	default:
		return a.owner
	}
}

// At returns the account of an index, nil for 0.
func (t *Table) At(i Index) *Account {
	if i == 0 {
		return nil
	}
	return (*t.accounts.Load())[i]
}

// Tenants returns the tenants of the last Set. The caller must not change them.
func (t *Table) Tenants() []Tenant {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.tenants
}

// Share is what a tenant may have and has of one model, or of AllModels: bytes in each tier, by registry.Level.
type Share struct {
	Model       string
	Limit, Used [registry.NumLevels]uint64
}

// Status is what a tenant may have and has.
type Status struct {
	Name string
	Share
	// Models has the models with a limit or a block, by name.
	Models []Share
	// Expired counts the blocks whose time was up.
	Expired uint64
	TTL     time.Duration
	// Listed is false for a tenant that was taken out of the configuration and still has blocks.
	Listed bool
}

// Status returns the tenants, and the former ones that still have blocks, by name.
func (t *Table) Status() (all []Status) {
	for _, a := range (*t.accounts.Load())[1:] {
		s := Status{Name: a.name, TTL: a.TTL(), Listed: a.listed.Load(), Expired: a.expired.Load()}
		s.Share, s.Models = a.status()
		if s.Listed || s.Used != [registry.NumLevels]uint64{} {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// status returns the share of all models, and those of the models by name.
func (a *Account) status() (all Share, models []Share) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, model := range slices.Sorted(maps.Keys(a.shares)) {
		s := Share{model, a.shares[model].limit, a.shares[model].used}
		if model == AllModels {
			all = s
		} else {
			models = append(models, s)
		}
	}
	return all, models
}
