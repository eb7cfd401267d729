package engine

import (
	"slices"
	"sync"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// maxErrorText bounds the bytes of the text of an ERROR, which may quote the client.
const maxErrorText = 1024

// link is the agent's side of a session's connection. It announces an extent to the client
// before any frame names a slot of the extent.
type link struct {
	conn *proto.Conn
	pool *blockmgr.Pool

	mu   sync.Mutex
	sent map[uint32]bool // announced extents
}

func newLink(conn *proto.Conn, pool *blockmgr.Pool) *link {
	return &link{conn: conn, pool: pool, sent: make(map[uint32]bool)}
}

// announce sends EXTENT_READY for every extent that the client does not know yet.
func (l *link) announce(extents ...blockmgr.ExtentInfo) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.announceLocked(extents)
}

// announceLocked sends EXTENT_READY, with the extent's file, for each of extents that the client
// does not know yet. It skips extents that the pool has removed since it listed them. Their
// files are closed, and no session holds a slot of them.
func (l *link) announceLocked(extents []blockmgr.ExtentInfo) error {
	for _, e := range extents {
		if l.sent[e.ID] {
			continue
		}
		m := proto.ExtentReady{
			Extent: e.ID, Slots: e.Slots, SlotBytes: e.SlotBytes, DataOffset: e.DataOffset, FileBytes: e.FileBytes,
		}
		if err := l.conn.Send(proto.TypeExtentReady, 0, &m, e.File); err != nil {
			if l.gone(e.ID) {
				continue
			}
			return err
		}
		l.sent[e.ID] = true
	}
	return nil
}

// gone reports whether the pool has removed an extent.
func (l *link) gone(id uint32) bool {
	return !slices.ContainsFunc(l.pool.Extents(), func(e blockmgr.ExtentInfo) bool { return e.ID == id })
}

// ready announces the extents of slots that the client does not know. The caller's pin or
// grant of a slot keeps its extent in the pool.
func (l *link) ready(slots []blockmgr.Slot) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		if !l.sent[s.Extent] {
			return l.announceLocked(l.pool.Extents())
		}
	}
	return nil
}

// watch announces extents, the files of the pool's slots, to a scheduler as they become ready,
// until stop is closed or the connection ends. For workers workerLink.send announces them.
func (l *link) watch(stop <-chan struct{}) {
	extents, cancel := l.pool.WatchExtents()
	defer cancel()
	for {
		select {
		case e, ok := <-extents:
			if !ok || l.announce(e) != nil {
				return
			}
		case <-stop:
			return
		}
	}
}

// send sends a frame that names slots, after their extents.
func (l *link) send(t proto.Type, corr uint32, m proto.Message, slots []blockmgr.Slot) error {
	if err := l.ready(slots); err != nil {
		return err
	}
	return l.conn.Send(t, corr, m, nil)
}

// sendError sends a refusal of a frame about request.
func sendError(c *proto.Conn, corr uint32, request uint64, r *refusal.Error) error {
	text := r.Err.Error()
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	return c.Send(proto.TypeError, corr, &proto.Error{Code: r.Code, Retryable: r.Retryable, Request: request, Text: text}, nil)
}

// packSlots encodes slots for a frame.
func packSlots(slots []blockmgr.Slot) []byte {
	wire := make([]proto.Slot, len(slots))
	for i, s := range slots {
		wire[i] = proto.Slot(s)
	}
	return proto.AppendSlots(nil, wire)
}

// unpackSlots decodes slots. proto.Decode has checked the length.
func unpackSlots(b []byte) ([]blockmgr.Slot, error) {
	wire, err := proto.ParseSlots(nil, b)
	if err != nil {
		return nil, err
	}
	slots := make([]blockmgr.Slot, len(wire))
	for i, s := range wire {
		slots[i] = blockmgr.Slot(s)
	}
	return slots, nil
}
