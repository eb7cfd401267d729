package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// fit answers a FIT: how many tokens of a request all KV groups can serve. It pins nothing.
func (s *session) fit(corr uint32, m *proto.Fit) error {
	r, err := s.find(m.Request, m.Generation)
	if err != nil {
		return err
	}
	s.count.fits.Add(1)
	tokens := s.pool.Fit(r.blocks, m.Tokens, m.Align)
	return s.sched.conn.Send(proto.TypeFitted, corr, &proto.Fitted{Request: m.Request, Generation: m.Generation, Tokens: tokens}, nil)
}

// lookup answers a LOOKUP. A LOOKUP that may wait for the disk gets its own goroutine, so that
// the reader of the connection goes on.
func (s *session) lookup(corr uint32, m *proto.Lookup) error {
	r, err := s.find(m.Request, m.Generation)
	if err != nil {
		return err
	}
	if err := s.chain.checkGroup(proto.TypeLookup, m.Group); err != nil {
		return err
	}
	s.count.lookups.Add(1)
	blocks := s.chain.completeBlocks(r, m.Group, m.First, m.Count)
	if m.WaitMillis == 0 {
		return s.answerLookup(corr, m, r, blocks, 0)
	}
	select {
	case s.lookupSlots <- struct{}{}:
	default: // maxWaitingLookups wait already
		return s.answerLookup(corr, m, r, blocks, 0)
	}
	s.lookups.Go(func() {
		defer func() { <-s.lookupSlots }()
		wait := time.Duration(m.WaitMillis) * time.Millisecond
		if err := s.guard(func() error { return s.answerLookup(corr, m, r, blocks, wait) }); err != nil {
			s.count.refused.Add(1)
			_ = sendError(s.sched.conn, corr, m.Request, refusalOf(err)) // a failed send has closed the connection
		}
	})
	return nil
}

// answerLookup finds and pins blocks of request r, and answers LOOKUP with LOOKUP_HIT: the number
// of blocks that are ready in host slots, the number that are still being read from disk, and the
// tier that each ready block came from. It waits for reads from disk at most for wait; the end of
// the wait is no error. r records the pins before the answer leaves, so that RELEASE finds them.
// A closed request keeps no pins.
func (s *session) answerLookup(corr uint32, m *proto.Lookup, r *request, blocks []blockmgr.Block, wait time.Duration) error {
	var found blockmgr.LookupResult
	if len(blocks) > 0 {
		ctx, cancel := context.WithTimeout(s.ctx, wait)
		defer cancel()
		var err error
		if found, err = s.pool.Lookup(ctx, s.id, blocks); err != nil {
			return err
		}
	}
	spare, open := s.recordPins(r, blockName{m.Group, m.First}, len(blocks), found)
	if err := s.unpin(spare); err != nil {
		return err
	}
	if !open {
		return refusal.New(proto.CodeNotFound, "%s was closed", r)
	}
	hit := proto.LookupHit{
		Request: m.Request, Generation: m.Generation, First: m.First,
		Ready: uint32(len(found.Slots)), Coming: uint32(found.Coming), Sources: make([]byte, len(found.Sources)),
		Slots: packSlots(found.Slots), Group: m.Group,
	}
	for i, t := range found.Sources {
		hit.Sources[i] = byte(t)
	}
	return s.sched.send(proto.TypeLookupHit, corr, &hit, found.Slots)
}

// recordPins adds the pins that a lookup took to its request. The lookup asked for asked blocks
// from block first on and found the first of them. The caller releases spare: the second pins of
// slots that the request pins already, or all pins of a closed request. open is false for a
// closed request.
func (s *session) recordPins(r *request, first blockName, asked int, found blockmgr.LookupResult) (spare []blockmgr.Slot, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.closed {
		return found.Slots, false
	}
	for i, slot := range found.Slots {
		block := blockName{first.group, first.index + uint32(i)}
		p, ok := r.pins[block]
		switch {
		case ok && p.slot == slot:
			spare = append(spare, slot)
			continue
		case ok: // the earlier slot is damaged; a copy from it may be in flight
			p.damaged = append(p.damaged, p.slot)
		}
		p.slot, p.source = slot, found.Sources[i]
		r.pins[block] = p
	}
	if s.chain.primary(first.group) { // the other groups have parts of the same tokens
		matched := r.hits.add(first.index, asked, found.Sources)
		s.cache.matchedTokens.Add(uint64(matched) * uint64(s.chain.blockSize) * uint64(s.chain.pages(first.group)))
	}
	return spare, true
}

// claim answers a CLAIM, by which the scheduler has pinned blocks copied to the engine's device: it
// queues a LOAD, the order to copy, for every worker. The pins stay until RELEASE. claim refuses
// the first CLAIM after a worker was lost, so that the scheduler learns of the loss before it
// relies on a load. A worker whose queue is full is disconnected.
func (s *session) claim(corr uint32, m *proto.Claim) error {
	r, err := s.find(m.Request, m.Generation)
	if err != nil {
		return err
	}
	if err := s.chain.checkGroup(proto.TypeClaim, m.Group); err != nil {
		return err
	}
	s.count.claims.Add(1)
	pins, workers, err := s.claimable(r, m)
	if err != nil {
		return err
	}
	slots := make([]blockmgr.Slot, len(pins))
	for i, p := range pins {
		slots[i] = p.slot
	}
	load := queuedLoad{&proto.Load{Job: m.Job, Slots: packSlots(slots), Blocks: m.Blocks, Group: m.Group}, slots}
	sent := 0
	for _, w := range workers {
		if w.offer(load) {
			sent++
		}
	}
	s.count.loads.Add(uint64(sent))
	if n := len(workers) - sent; n > 0 {
		s.count.loadsDropped.Add(uint64(n))
		s.log.Warn("workers do not read: their connections are closed", zap.Int("workers", n), zap.Int("queued_loads", maxQueuedLoads))
	}
	if sent == 0 {
		return refusal.New(proto.CodeState, "job %d: every worker's queue of LOADs is full", m.Job)
	}
	s.cache.onboarded(pins)
	return s.sched.conn.Send(proto.TypeClaimed, corr, &proto.Claimed{Job: m.Job, Workers: uint32(sent)}, nil)
}

// claimable returns the pins that a CLAIM names and the workers that shall load them. Every
// block must be pinned. The first call after the loss of a worker returns a refusal, which
// tells the scheduler of the loss.
func (s *session) claimable(r *request, m *proto.Claim) ([]pin, []*workerLink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.workerLost:
		s.workerLost = false
		return nil, nil, refusal.New(proto.CodeState, "job %d: a worker's connection has ended, %d workers are left", m.Job, len(s.workers))
	case len(s.workers) == 0:
		return nil, nil, refusal.New(proto.CodeState, "job %d: no worker is registered", m.Job)
	}
	pins := make([]pin, m.Count)
	for i := range pins {
		p, ok := r.pins[blockName{m.Group, m.First + uint32(i)}]
		if !ok {
			return nil, nil, refusal.New(proto.CodeState, "%s block %d is not pinned: a CLAIM takes blocks that LOOKUP reported", r, m.First+uint32(i))
		}
		pins[i] = p
	}
	return pins, slices.Collect(maps.Keys(s.workers)), nil
}

// store answers STORE: the scheduler offers blocks of a request for the pool. The answer is GRANT:
// the slots that the engine may write, for the blocks that the pool does not have. store refuses
// the blocks that grantRoom has no room for. If the offer's priority is below Config.MinPriority,
// it refuses these and all later blocks of the request: lookups find a block only behind its
// parent. A block of a KV group has one or more pages; storableEnd counts pages.
func (s *session) store(corr uint32, m *proto.Store) error {
	r, err := s.find(m.Request, m.Generation)
	if err != nil {
		return err
	}
	if err := s.chain.checkGroup(proto.TypeStore, m.Group); err != nil {
		return err
	}
	blocks, err := s.chain.wholeRun(r, m.Group, m.First, m.Count)
	if err != nil {
		return err
	}
	s.count.stores.Add(1)
	pages := s.chain.pages(m.Group)
	if m.Priority < s.cfg.MinPriority {
		r.storableEnd = min(r.storableEnd, m.First*pages)
	}
	storable := 0 // how many of the blocks end before storableEnd
	if end := r.storableEnd / pages; m.First < end {
		storable = int(min(end-m.First, m.Count))
	}
	s.count.lowPriority.Add(uint64(len(blocks) - storable))
	var got blockmgr.GrantResult
	offered := blocks[:min(storable, s.grantRoom())] // the others count as refused
	if len(offered) > 0 {
		if got, err = s.pool.Grant(s.id, offered, m.Priority); err != nil {
			return err
		}
	}
	answer := proto.Grant{
		Request: m.Request, Generation: m.Generation,
		Present: uint32(got.Present), Refused: uint32(got.Refused + len(blocks) - len(offered)), Group: m.Group,
	}
	wire := make([]proto.GrantedSlot, len(got.Grants))
	slots := make([]blockmgr.Slot, len(got.Grants))
	for i, g := range got.Grants {
		slots[i] = g.Slot
		wire[i] = proto.GrantedSlot{Block: m.First + uint32(g.Index), Slot: proto.Slot(g.Slot)}
	}
	s.recordGrants(r, slots)
	answer.Grants = proto.AppendGrants(nil, wire)
	return s.sched.send(proto.TypeGrant, corr, &answer, slots)
}

// grantRoom returns how many more slots the session may be granted. Slots kept by RESUME count
// too and may exceed maxGrants; then it is 0.
func (s *session) grantRoom() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, maxGrants-s.grants)
}

// recordGrants adds grants to a request.
func (s *session) recordGrants(r *request, slots []blockmgr.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slot := range slots {
		r.grants[slot] = struct{}{}
	}
	s.grants += len(slots)
}

// granted decodes the list of slots in a COMMIT or ABORT, and returns its request and its slots.
// The error is a refusal: all slots must be granted to the request.
func (s *session) granted(m *proto.SlotList) (*request, []blockmgr.Slot, error) {
	r, err := s.grantHolder(m.Request, m.Generation)
	if err != nil {
		return nil, nil, err
	}
	slots, err := unpackSlots(m.Slots)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slot := range slots {
		if _, ok := r.grants[slot]; !ok {
			return nil, nil, refusal.New(proto.CodeState, "slot %d of extent %d generation %d is not granted to %s",
				slot.Index, slot.Extent, slot.Generation, r)
		}
	}
	return r, slots, nil
}

// removeGrants removes committed or aborted grants.
func (s *session) removeGrants(r *request, slots []blockmgr.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(r.grants)
	for _, slot := range slots {
		delete(r.grants, slot)
	}
	s.grants -= before - len(r.grants)
	if len(r.grants) == 0 {
		delete(s.superseded, r.requestName)
	}
}

// commit answers COMMIT: from now on lookups find the blocks that the engine has written to the
// slots.
func (s *session) commit(corr uint32, m *proto.SlotList) error {
	r, slots, err := s.granted(m)
	if err != nil {
		return err
	}
	if err := s.pool.Commit(s.id, slots); err != nil {
		return err
	}
	s.count.commits.Add(1)
	s.removeGrants(r, slots)
	return s.sched.conn.Send(proto.TypeOK, corr, nil, nil)
}

// abort answers ABORT: it frees granted slots, to which the engine writes no more.
func (s *session) abort(m *proto.SlotList) error {
	r, slots, err := s.granted(m)
	if err != nil {
		return err
	}
	if err := s.pool.Abort(s.id, slots); err != nil {
		return err
	}
	s.removeGrants(r, slots)
	return nil
}

// resetPatience bounds how long a RESET waits for the pool to finish sealing, writing and
// reading blocks.
const resetPatience = 2 * time.Second

// reset answers RESET: it empties the namespace's pool, unless another session uses the pool,
// previous sessions included.
func (s *session) reset(corr uint32) error {
	if err := s.checkHoldsNothing(); err != nil {
		return err
	}
	emptied, err := s.pool.ResetExclusive(s.id)
	if errors.Is(err, blockmgr.ErrActive) { // perhaps only by copies that end soon
		emptied, err = s.resetAfterQuiesce()
	}
	switch {
	case errors.Is(err, blockmgr.ErrActive):
		return &refusal.Error{Code: proto.CodeState, Retryable: true, Err: err}
	case err != nil:
		return err
	case emptied:
		s.count.resets.Add(1)
		s.log.Info("a RESET emptied the namespace's pool", zap.Stringer("namespace", s.namespace))
	}
	return s.sched.conn.Send(proto.TypeOK, corr, nil, nil)
}

// resetAfterQuiesce waits at most resetPatience until the pool seals, writes and reads no
// block, and then resets it. emptied is false when other sessions use the pool.
func (s *session) resetAfterQuiesce() (emptied bool, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, resetPatience)
	defer cancel()
	_ = s.pool.Quiesce(ctx) // after a timeout ResetExclusive returns ErrActive
	return s.pool.ResetExclusive(s.id)
}

// checkHoldsNothing returns a refusal while the session has an open request, a pin or a grant.
func (s *session) checkHoldsNothing() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	pins := 0
	if s.resumed != nil {
		pins = len(s.resumed.pins)
	}
	if n := len(s.requests); n > 0 || s.grants > 0 || pins > 0 {
		return refusal.New(proto.CodeState, "RESET: the session has %d open requests, %d grants and %d resumed pins, want none", n, s.grants, pins)
	}
	return nil
}
