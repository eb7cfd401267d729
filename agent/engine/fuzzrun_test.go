package engine

import (
	"context"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// fuzzRun interprets the bytes of a program. There are three connections: 0 is a
// scheduler, 1 a worker of its session, 2 another scheduler.
type fuzzRun struct {
	t     *testing.T
	agent *fuzzAgent
	in    []byte
	conns [3]*fuzzConn
	corr  uint32
	lists sync.WaitGroup // that the agent waits for; each ends with its session
}

// next is the program's next byte, 0 at its end.
func (r *fuzzRun) next() byte {
	if len(r.in) == 0 {
		return 0
	}
	b := r.in[0]
	r.in = r.in[1:]
	return b
}

func (r *fuzzRun) u32(n int) uint32 { return uint32(int(r.next()) % n) }

// step does one thing. The low two bits of its first byte choose the connection
// (3 is a fresh one without a handshake), the next three what happens:
// 0 to 3 send the message of the type and fields that follow, 4 has the agent ask all
// engines for their cached hashes, 5 changes or cuts a message, 6 sends bytes as they
// are, 7 does what no client does.
func (r *fuzzRun) step() {
	b := r.next()
	i := int(b & 3)
	c := r.connection(i)
	if c == nil {
		return
	}
	switch b >> 2 & 7 {
	case 4:
		r.list()
	case 5:
		r.spoil(c, i)
	case 6:
		n := min(int(r.next()), len(r.in))
		message := r.in[:n]
		r.in = r.in[n:]
		if n > 0 { // an empty one would be the end of the connection
			c.write(message, nil)
		}
	case 7:
		r.misbehave(c, i)
	default:
		typ, corr, m := r.message(c, i)
		c.ask(r.t, typ, corr, m, nil)
	}
}

// connection is the connection with a number, made anew when there is none.
func (r *fuzzRun) connection(i int) *fuzzConn {
	fresh := i == 3
	if fresh {
		i = 2
	}
	if c := r.conns[i]; c != nil && c.Conn != nil {
		if !fresh {
			return c
		}
		c.ask(r.t, proto.TypeBye, 1<<31, &proto.Bye{}, nil)
		c.close()
	}
	conn, err := proto.Dial(r.t.Context(), string(r.agent.Socket))
	if err != nil {
		r.t.Fatal(err)
	}
	c := &fuzzConn{Conn: conn}
	r.conns[i] = c
	if fresh {
		return c
	}
	if i == 1 {
		r.connection(0) // whose session it joins
	}
	c.ask(r.t, proto.TypeHello, 1, r.hello(i), nil)
	if i == 1 && c.Conn != nil {
		c.ask(r.t, proto.TypeRegister, 2, &proto.Register{DeviceBlocks: 1, BlockBytes: 4096}, nil)
	}
	if c.Conn == nil {
		return nil
	}
	return c
}

func (r *fuzzRun) hello(i int) *proto.Hello {
	h := hybridHello([]uint64{1, 1, 2}[i%3])
	h.Major, h.Role, h.WantEvicted, h.ListsCached = proto.VersionMajor, string(proto.RoleScheduler), i == 0, i == 0
	if i == 1 {
		h.Role = string(proto.RoleWorker)
	}
	return &h
}

// hybridHello is the HELLO of an engine with three KV groups.
func hybridHello(worker uint64) proto.Hello {
	h := agenttest.Hello(worker)
	ns := &h.Namespace
	ns.Groups = []kv.Group{
		{Kind: "full", BlockSize: ns.BlockSize, BlockBytes: ns.BlockBytes(), Layers: 1},
		{Kind: "sliding", Window: ns.BlockSize + 2, BlockSize: ns.BlockSize, BlockBytes: 64, Layers: 1},
		{Kind: "state", BlockSize: 2 * ns.BlockSize, BlockBytes: 64, Layers: 1},
	}
	return h
}

// spoil sends a message that was changed in one byte, and then maybe cut.
func (r *fuzzRun) spoil(c *fuzzConn, i int) {
	typ, corr, m := r.message(c, i)
	b, err := proto.AppendFrame(nil, typ, corr, m)
	if err != nil {
		r.t.Fatal(err)
	}
	at := int(r.next()) % len(b)
	b[at] ^= r.next()
	b = b[:len(b)-int(r.next())%len(b)]
	c.write(b, nil)
	if h, _, err := proto.ParseFrame(b); err == nil {
		c.await(r.t, h.Corr)
	}
}

// list has the agent ask each engine for a list.
func (r *fuzzRun) list() {
	r.agent.mu.Lock()
	defer r.agent.mu.Unlock()
	for _, s := range r.agent.byID {
		r.lists.Go(func() { _, _ = s.cachedHashes(context.Background()) }) // whatever the program answers
	}
}

// misbehave does what is no message, or too much of one.
func (r *fuzzRun) misbehave(c *fuzzConn, i int) {
	switch r.next() % 4 {
	case 0:
		c.close()
	case 1:
		typ, corr, m := r.message(c, i)
		c.ask(r.t, typ, corr, m, oneFile())
	case 2:
		c.write(make([]byte, proto.MaxFrame+1+int(r.next())), nil)
	default: // many at once, nothing read
		typ, _, m := r.message(c, i)
		b, err := proto.AppendFrame(nil, typ, 0, m)
		if err != nil {
			r.t.Fatal(err)
		}
		for n := r.next() % 64; n > 0 && c.Conn != nil; n-- {
			c.write(b, nil)
		}
	}
}

// message is a message of the type that follows, out of its fields' bytes. Its
// correlation is right but for one byte in eight.
func (r *fuzzRun) message(c *fuzzConn, i int) (typ proto.Type, corr uint32, m proto.Message) {
	b := r.next()
	typ = proto.Type(b % 40)
	if typ.WantsAnswer() != (b >= 224) {
		r.corr++
		corr = r.corr
	}
	id := func() (uint64, uint32) {
		n, gen := uint64(r.next()%5), r.u32(3)
		if n == 4 {
			return proto.ResumedRequest, 0
		}
		return n, gen
	}
	switch typ {
	case proto.TypeHello:
		return typ, corr, r.hello(i)
	case proto.TypeRegister:
		return typ, corr, &proto.Register{DeviceBlocks: r.u32(3), BlockBytes: 64 * uint64(r.next()), Offset: 64 * uint64(r.next())}
	case proto.TypeOpen, proto.TypeAppend:
		return typ, corr, r.tokens(typ, id)
	case proto.TypeCommit, proto.TypeAbort:
		req, gen := id()
		return typ, corr, &proto.SlotList{Request: req, Generation: gen, Slots: r.slots(c)}
	case proto.TypeResume:
		return typ, corr, &proto.Resume{Session: uint64(r.next()), AgentNonce: uint64(r.next()), Granted: r.slots(c), Pinned: r.slots(c)}
	case proto.TypeClose:
		req, gen := id()
		return typ, corr, &proto.Close{Request: req, Generation: gen}
	case proto.TypeStats:
		return typ, corr, &proto.Stats{Loads: uint64(r.next()), Errors: uint64(r.next()), DeviceBlocksTotal: uint64(r.u32(3)), DeviceBlocksUsed: uint64(r.u32(3))}
	case proto.TypeCached:
		m := &proto.Cached{List: uint64(r.u32(4)), Hashes: make([]byte, 8*r.u32(3)), Final: r.u32(3) > 0, Unavailable: r.u32(4) == 3}
		return typ, corr, m
	case proto.TypeFit:
		req, gen := id()
		return typ, corr, &proto.Fit{Request: req, Generation: gen, Tokens: uint32(r.next()), Align: r.u32(5)}
	case proto.TypeLookup, proto.TypeClaim, proto.TypeStore, proto.TypeRelease:
		return typ, corr, r.run(typ, id)
	}
	m, _ = proto.NewMessage(typ) // an agent's own, or none
	return typ, corr, m
}

// tokens is an OPEN or an APPEND.
func (r *fuzzRun) tokens(typ proto.Type, id func() (uint64, uint32)) proto.Message {
	req, gen := id()
	lora, salt := []string{"", "a"}[r.next()%2], []string{"", "s"}[r.next()%2]
	seed, blocks := int(r.next()%2), int(r.next()%5)
	packed := proto.AppendTokens(nil, agenttest.Prompt(seed, blocks))
	if typ == proto.TypeAppend {
		return &proto.Append{Request: req, Generation: gen, Offset: agenttest.BlockSize * r.u32(5), Tokens: packed}
	}
	return &proto.Open{Request: req, Generation: gen, LoRA: lora, Salt: salt, Tokens: packed}
}

// run is a message about a run of blocks.
func (r *fuzzRun) run(typ proto.Type, id func() (uint64, uint32)) proto.Message {
	req, gen := id()
	b := uint32(r.next())
	first, group, count := b%6, b/6%4, r.u32(6)
	switch typ {
	case proto.TypeLookup:
		return &proto.Lookup{Request: req, Generation: gen, First: first, Count: count, WaitMillis: r.u32(3), Group: group}
	case proto.TypeClaim:
		return &proto.Claim{Request: req, Generation: gen, First: first, Count: count, Job: uint64(r.next()), Blocks: make([]byte, 4*count), Group: group}
	case proto.TypeStore:
		return &proto.Store{Request: req, Generation: gen, First: first, Count: count, Priority: uint32(r.next()), Group: group}
	}
	return &proto.Range{Request: req, Generation: gen, First: first, Count: count, Group: group}
}

// slots are up to four of those that answers named, granted and pinned ones in
// turn, or made up.
func (r *fuzzRun) slots(c *fuzzConn) []byte {
	var list []proto.Slot
	for n := r.next() % 5; n > 0; n-- {
		from := c.granted
		b := int(r.next())
		if b%2 == 0 {
			from = c.pinned
		}
		switch {
		case b == 255 || len(from) == 0:
			list = append(list, proto.Slot{Extent: r.u32(3), Index: r.u32(70), Generation: uint64(r.next())})
		default:
			list = append(list, from[b/2%len(from)])
		}
	}
	return proto.AppendSlots(nil, list)
}
