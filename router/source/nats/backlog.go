package nats

import "github.com/blockyard-ai/blockyard/router/source"

// maxBacklogBytes bounds the bytes in a backlog, except that one frame always fits.
const maxBacklogBytes = 64 << 20

// backlog keeps frames in order while the router is busy.
type backlog struct {
	frames []source.Frame
	first  int // in frames
	bytes  int
	// most bounds the number of frames.
	most int
}

func (b *backlog) len() int { return len(b.frames) - b.first }

// full reports whether there is no room for another frame.
func (b *backlog) full() bool { return b.len() >= b.most || b.bytes >= maxBacklogBytes }

func (b *backlog) push(f source.Frame) {
	if b.first > len(b.frames)/2 { // so that each frame is moved once on average
		n := copy(b.frames, b.frames[b.first:])
		clear(b.frames[n:])
		b.frames, b.first = b.frames[:n], 0
	}
	b.frames = append(b.frames, f)
	b.bytes += len(f.Data)
}

// peek returns the oldest frame. There must be one.
func (b *backlog) peek() source.Frame { return b.frames[b.first] }

// pop removes the oldest frame.
func (b *backlog) pop() {
	b.bytes -= len(b.frames[b.first].Data)
	b.frames[b.first] = source.Frame{}
	if b.first++; b.len() == 0 {
		b.frames, b.first = nil, 0 // gives back the memory of a long backlog
	}
}
