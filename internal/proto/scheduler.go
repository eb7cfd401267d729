package proto

import (
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// RequestID names one incarnation of a request. A preempted request comes back with
// the next generation.
type RequestID struct {
	ID         uint64
	Generation uint32
	// Group is the KV group whose blocks Lookup, Claim, Store and Release count, 0 in a
	// namespace without groups. Other calls ignore it.
	Group uint32
}

// LookupAnswer is the answer to LOOKUP. Ready blocks from the first requested one
// are pinned. Coming more are being read from disk. Sources has one tier and Slots
// one slot for each ready block.
type LookupAnswer struct {
	Ready, Coming int
	Sources       []kv.Tier
	Slots         []Slot
}

// StoreAnswer is the answer to STORE. Present blocks were stored already. Refused
// blocks found no slot.
type StoreAnswer struct {
	Grants           []GrantedSlot
	Present, Refused int
}

// Held has the slots of an engine: granted slots that are neither committed nor aborted, and
// pinned slots.
type Held struct {
	Granted, Pinned []Slot
}

// SchedulerClient is the connection of an engine's scheduler. Its methods may be
// called from several goroutines. The caller must send the frames of one request in
// order.
type SchedulerClient struct {
	*client
	drain chan Drain
}

// DialScheduler returns a client of the agent in the role of an engine's scheduler. The client
// maps each extent (file of slots) that the agent announces. ctx bounds the handshake only. The
// caller closes the client.
func DialScheduler(ctx context.Context, o ClientOptions) (*SchedulerClient, error) {
	o.Hello.WantEvicted, o.Hello.ListsCached = o.Evicted != nil, o.Cached != nil
	c, err := dial(ctx, o, RoleScheduler)
	if err != nil {
		return nil, err
	}
	s := &SchedulerClient{client: c, drain: make(chan Drain, 1)}
	c.notices[TypeDrain] = s.noteDrain
	if o.Evicted != nil {
		c.notices[TypeEvicted] = func(body []byte) error {
			var m Evicted
			if err := Decode(TypeEvicted, body, &m); err != nil {
				return err
			}
			hashes, err := ParseHashes[kv.SequenceHash](nil, m.Hashes)
			o.Evicted(kv.Tier(m.Tier), hashes, m.Lost)
			return err
		}
	}
	if o.Cached != nil {
		c.lister = newLister(c, o.Cached)
		c.notices[TypeListCached] = c.lister.note
		go c.lister.run()
	}
	go c.run()
	return s, nil
}

// noteDrain handles the body of a DRAIN, by which the agent says that it will stop. It keeps the
// first; the agent sends one.
func (c *SchedulerClient) noteDrain(body []byte) error {
	var m Drain
	if err := Decode(TypeDrain, body, &m); err != nil {
		return err
	}
	select {
	case c.drain <- m:
	default:
	}
	return nil
}

// Draining delivers the agent's DRAIN. The agent is about to stop: begin nothing
// new, let copies end, settle them and call Bye.
func (c *SchedulerClient) Draining() <-chan Drain { return c.drain }

// Open begins a request with all tokens known so far, in as many frames as
// necessary. There is no answer. A refusal shows in the next call that has one.
func (c *SchedulerClient) Open(r RequestID, lora, loraName, salt string, tokens []uint32) error {
	n := min(len(tokens), MaxTokensPerFrame)
	err := c.post(TypeOpen, &Open{
		Request: r.ID, Generation: r.Generation, LoRA: lora, LoRAName: loraName, Salt: salt,
		Tokens: AppendTokens(nil, tokens[:n]),
	})
	if err != nil {
		return err
	}
	return c.Append(r, n, tokens[n:])
}

// Append adds tokens to a request that already has offset tokens, in as many frames as necessary.
// There is no answer. A refusal shows in the next call that has one.
func (c *SchedulerClient) Append(r RequestID, offset int, tokens []uint32) error {
	for len(tokens) > 0 {
		if offset < 0 || offset > MaxTokens {
			return fmt.Errorf("%s offset: %d is not in 0..%d", TypeAppend, offset, MaxTokens)
		}
		n := min(len(tokens), MaxTokensPerFrame)
		a := Append{Request: r.ID, Generation: r.Generation, Offset: uint32(offset), Tokens: AppendTokens(nil, tokens[:n])}
		if err := c.post(TypeAppend, &a); err != nil {
			return err
		}
		tokens, offset = tokens[n:], offset+n
	}
	return nil
}

// Lookup asks for blocks first … first+count-1, and lets the agent wait up to wait
// for blocks on disk. Ready blocks stay pinned until Release or CloseRequest. If
// ctx ends first, blocks may still be pinned, and CloseRequest releases them.
func (c *SchedulerClient) Lookup(ctx context.Context, r RequestID, first, count int, wait time.Duration) (LookupAnswer, error) {
	if err := checkRun(TypeLookup, first, count); err != nil {
		return LookupAnswer{}, err
	}
	var a LookupAnswer
	deadline := time.Now().Add(wait)
	for count > 0 {
		n := min(count, MaxBlocksPerFrame)
		left := min(max(time.Until(deadline).Milliseconds(), 0), MaxWaitMillis)
		var hit LookupHit
		err := c.call(ctx, TypeLookup, &Lookup{
			Request: r.ID, Generation: r.Generation, First: uint32(first), Count: uint32(n), WaitMillis: uint32(left), Group: r.Group,
		}, TypeLookupHit, &hit)
		if err != nil {
			return a, err
		}
		a.Ready += int(hit.Ready)
		a.Coming += int(hit.Coming)
		for _, s := range hit.Sources {
			a.Sources = append(a.Sources, kv.Tier(s))
		}
		if a.Slots, err = ParseSlots(a.Slots, hit.Slots); err != nil {
			return a, err
		}
		if int(hit.Ready) < n {
			break
		}
		first, count = first+n, count-n
	}
	return a, nil
}

// Claim tells the agent that the pinned blocks from first on will be loaded into deviceBlocks, at
// most MaxBlocksPerFrame of them. The agent then orders the session's workers to copy, by a LOAD
// with the number job. Claim returns the number of workers that got it.
func (c *SchedulerClient) Claim(ctx context.Context, r RequestID, job uint64, first int, deviceBlocks []uint32) (int, error) {
	if err := checkRun(TypeClaim, first, len(deviceBlocks)); err != nil {
		return 0, err
	}
	var a Claimed
	err := c.call(ctx, TypeClaim, &Claim{
		Request: r.ID, Generation: r.Generation, First: uint32(first), Count: uint32(len(deviceBlocks)),
		Job: job, Blocks: AppendTokens(nil, deviceBlocks), Group: r.Group,
	}, TypeClaimed, &a)
	return int(a.Workers), err
}

// Store offers blocks first … first+count-1, in several frames if count exceeds
// MaxBlocksPerFrame. With an error Store returns the grants made so far.
func (c *SchedulerClient) Store(ctx context.Context, r RequestID, first, count int) (StoreAnswer, error) {
	return c.StorePriority(ctx, r, first, count, 0)
}

// StorePriority asks for slots to store blocks first … first+count-1 of a request in, with a
// retention priority: blocks of a higher priority stay longer. The answer has a granted slot for
// each block that is neither present nor refused. The caller fills the slots and calls Commit or
// Abort.
func (c *SchedulerClient) StorePriority(ctx context.Context, r RequestID, first, count int, priority uint32) (StoreAnswer, error) {
	if err := checkRun(TypeStore, first, count); err != nil {
		return StoreAnswer{}, err
	}
	var a StoreAnswer
	for count > 0 {
		n := min(count, MaxBlocksPerFrame)
		var g Grant
		s := Store{Request: r.ID, Generation: r.Generation, First: uint32(first), Count: uint32(n), Priority: priority, Group: r.Group}
		err := c.call(ctx, TypeStore, &s, TypeGrant, &g)
		if err != nil {
			return a, err
		}
		if a.Grants, err = ParseGrants(a.Grants, g.Grants); err != nil {
			return a, err
		}
		a.Present += int(g.Present)
		a.Refused += int(g.Refused)
		first, count = first+n, count-n
	}
	return a, nil
}

// Commit tells the agent that the granted slots are filled. Their blocks are resident when it
// returns nil.
func (c *SchedulerClient) Commit(ctx context.Context, r RequestID, slots []Slot) error {
	for len(slots) > 0 {
		n := min(len(slots), MaxBlocksPerFrame)
		m := SlotList{Request: r.ID, Generation: r.Generation, Slots: AppendSlots(nil, slots[:n])}
		if err := c.call(ctx, TypeCommit, &m, TypeOK, nil); err != nil {
			return err
		}
		slots = slots[n:]
	}
	return nil
}

// Abort gives granted slots back to the agent unfilled. There is no answer.
func (c *SchedulerClient) Abort(r RequestID, slots []Slot) error {
	for len(slots) > 0 {
		n := min(len(slots), MaxBlocksPerFrame)
		m := SlotList{Request: r.ID, Generation: r.Generation, Slots: AppendSlots(nil, slots[:n])}
		if err := c.post(TypeAbort, &m); err != nil {
			return err
		}
		slots = slots[n:]
	}
	return nil
}

// Release drops the pins with which Lookup keeps blocks first … first+count-1 of a request in
// place, claimed or not. There is no answer.
func (c *SchedulerClient) Release(r RequestID, first, count int) error {
	if err := checkRun(TypeRelease, first, count); err != nil {
		return err
	}
	if count == 0 {
		return nil
	}
	return c.post(TypeRelease, &Range{Request: r.ID, Generation: r.Generation, First: uint32(first), Count: uint32(count), Group: r.Group})
}

// CloseRequest ends a request. Its pins are dropped and its uncommitted grants
// aborted.
func (c *SchedulerClient) CloseRequest(r RequestID) error {
	return c.post(TypeClose, &Close{Request: r.ID, Generation: r.Generation})
}

// Resume names the slots that the engine still uses from a session with an earlier agent, and
// returns the slots that it keeps. w is the WELCOME of that session. The kept slots belong to
// the request ResumedRequest, generation 0, until Commit, Abort, Release or CloseRequest. In
// Release the range counts the slots of Pinned. Resume may be called once.
func (c *SchedulerClient) Resume(ctx context.Context, w Welcome, h Held) (kept Held, err error) {
	m := Resume{
		Session: w.Session, AgentNonce: w.AgentNonce,
		Granted: AppendSlots(nil, h.Granted), Pinned: AppendSlots(nil, h.Pinned),
	}
	var a Resumed
	if err := c.call(ctx, TypeResume, &m, TypeResumed, &a); err != nil {
		return Held{}, err
	}
	if kept.Granted, err = ParseSlots(nil, a.Granted); err != nil {
		return Held{}, err
	}
	kept.Pinned, err = ParseSlots(nil, a.Pinned)
	return kept, err
}

// Reset lets the agent empty the namespace's pool. Nothing happens, without an
// error, if another session has the pool open. The session must hold no request,
// pin or grant.
func (c *SchedulerClient) Reset(ctx context.Context) error {
	return c.call(ctx, TypeReset, &Reset{}, TypeOK, nil)
}

// Bye ends the session in order. No copy may be in flight. The agent then closes
// the connection. Close is still needed.
func (c *SchedulerClient) Bye(ctx context.Context, reason string) error { return c.bye(ctx, reason) }

// checkRun checks block numbers before they are converted to 32 bits.
func checkRun(t Type, first, count int) error {
	if first < 0 || count < 0 || first > MaxTokens || count > MaxTokens {
		return fmt.Errorf("%s blocks %d+%d: want both in 0..%d", t, first, count, MaxTokens)
	}
	return nil
}
