package engine

import (
	"context"
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// hangUpTime bounds the time between the ends of both connections when an agent dies.
// After it only the worker has lost its connection.
const hangUpTime = 100 * time.Millisecond

// agentGone reports whether the agent has ended the link, or ends it within the time wait.
func (l *link) agentGone(wait time.Duration) bool {
	select {
	case <-l.sched.Done():
		return true
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-l.sched.Done():
		return true
	case <-timer.C:
		return false
	}
}

// lose fails the calls that wait for the agent. No copy begins any more. Copies under
// way go on, because the next agent hears of their slots.
func (l *link) lose() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

// drain forbids further copies and waits, for patience at most, until copies under way have
// ended and the agent has their blocks. The agent waits for that before it stops.
func (l *link) drain(ctx context.Context, patience time.Duration) {
	l.mu.Lock()
	l.lost = true
	done := make(chan struct{})
	l.settledAll = done
	l.tellSettledLocked()
	l.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-l.sched.Done():
	case <-timer.C:
	case <-ctx.Done():
	}
}

// tellSettledLocked ends the wait of drain once nothing is granted or read.
func (l *link) tellSettledLocked() {
	if l.settledAll != nil && len(l.granted)+len(l.loading) == 0 {
		close(l.settledAll)
		l.settledAll = nil
	}
}

// beginStore records granted slots before a copy writes them; endStore follows. It returns
// false, and nothing may be written, when the link is lost: the next agent will not know the slots.
func (l *link) beginStore(slots []proto.Slot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return false
	}
	for _, s := range slots {
		l.granted[s] = false
	}
	l.copies.Add(1)
	return true
}

// endStore records that a copy into the slots has ended; whole is true when all bytes are there.
// The slots stay granted until settled.
func (l *link) endStore(slots []proto.Slot, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		l.granted[s] = whole
	}
	l.copies.Done()
}

// settled removes slots that the agent has as committed or aborted.
func (l *link) settled(slots []proto.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		delete(l.granted, s)
	}
	l.tellSettledLocked()
}

// beginLoad records pinned slots before a copy reads them; endLoad follows. It returns false,
// and nothing may be read, when the link is lost.
func (l *link) beginLoad(slots []proto.Slot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return false
	}
	for _, s := range slots {
		l.loading[s]++
	}
	l.copies.Add(1)
	return true
}

// endLoad records that a copy out of the slots has ended.
func (l *link) endLoad(slots []proto.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		if l.loading[s]--; l.loading[s] == 0 {
			delete(l.loading, s)
		}
	}
	l.copies.Done()
	l.tellSettledLocked()
}

// held returns the slots of a lost link that copies use or have filled, for RESUME. When they
// are too many for RESUME, it waits for the copies and leaves some filled ones out.
func (l *link) held() proto.Held {
	if h := l.heldNow(); len(h.Granted)+len(h.Pinned) <= proto.MaxResumeSlots {
		return h
	}
	l.copies.Wait()
	h := l.heldNow()
	h.Granted = h.Granted[:min(len(h.Granted), proto.MaxResumeSlots)]
	return h
}

func (l *link) heldNow() proto.Held {
	l.mu.Lock()
	defer l.mu.Unlock()
	return proto.Held{Granted: slices.Collect(maps.Keys(l.granted)), Pinned: slices.Collect(maps.Keys(l.loading))}
}

// splitFilled splits granted slots into those that have their block and those whose copy failed.
func (l *link) splitFilled(slots []proto.Slot) (filled, spoilt []proto.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		if l.granted[s] {
			filled = append(filled, s)
		} else {
			spoilt = append(spoilt, s)
		}
	}
	return filled, spoilt
}

// device is the engine's device memory: equal blocks side by side. A block's first
// holder writes it before it becomes findable. Every holder of a reference may read it.
type device struct {
	mem        []byte
	blockBytes int
}

func newDevice(blocks, blockBytes int) device {
	return device{mem: make([]byte, blocks*blockBytes), blockBytes: blockBytes}
}

// bytes returns the memory of block b.
func (d device) bytes(b int32) []byte {
	at := int(b) * d.blockBytes
	return d.mem[at : at+d.blockBytes : at+d.blockBytes]
}

// compute writes the KV that a forward pass would leave in block b.
func (d device) compute(b int32, key kv.StoredKey) { fillBlock(d.bytes(b), key) }

// fillBlock writes over the whole of dst the bytes that the simulated engine computes for the
// block key. Equal keys give equal bytes, so that wrongBytes can verify any copy. The blocks of two KV
// groups have different bytes.
func fillBlock(dst []byte, key kv.StoredKey) {
	lo, hi := payloadSeed(key)
	for len(dst) >= 8 {
		lo += weyl
		binary.LittleEndian.PutUint64(dst, payloadWord(lo, hi))
		dst = dst[8:]
	}
	if len(dst) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], payloadWord(lo+weyl, hi))
		copy(dst, last[:])
	}
}

// wrongBytes returns the number of bytes of b that differ from what fillBlock
// writes for key.
func wrongBytes(b []byte, key kv.StoredKey) int {
	lo, hi := payloadSeed(key)
	wrong := 0
	for len(b) >= 8 {
		lo += weyl
		if d := binary.LittleEndian.Uint64(b) ^ payloadWord(lo, hi); d != 0 {
			wrong += nonzeroBytes(d)
		}
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], payloadWord(lo+weyl, hi))
		for i := range b {
			if b[i] != last[i] {
				wrong++
			}
		}
	}
	return wrong
}

// payloadSeed returns the start of the counter and the key of the generator for a block.
func payloadSeed(key kv.StoredKey) (lo, hi uint64) {
	return binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:16]) ^ uint64(key.Group())*weyl
}

// weyl is the step of the counter under the generator: 2^64 over the golden
// ratio, odd, so that it runs through every word before it repeats.
const weyl = 0x9e3779b97f4a7c15

// payloadWord returns one word of a keyed generator: two multiply-shift rounds over
// the counter, with the key's other half mixed in between.
func payloadWord(counter, hi uint64) uint64 {
	x := (counter ^ counter>>30) * 0xbf58476d1ce4e5b9
	x ^= hi
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// nonzeroBytes counts the bytes of d that are not zero: it folds each byte's
// bits into its lowest one.
func nonzeroBytes(d uint64) int {
	d |= d >> 4
	d |= d >> 2
	d |= d >> 1
	return bits.OnesCount64(d & 0x0101010101010101)
}
