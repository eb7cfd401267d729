package router

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// partTransport is a part of a Combined: it knows some publishers.
type partTransport struct {
	frames  chan Frame
	knows   []uint64
	stats   TransportStats
	resumed uint64
}

var errNotHere = errors.New("not here")

func (p *partTransport) Frames() <-chan Frame  { return p.frames }
func (p *partTransport) Stats() TransportStats { return p.stats }
func (p *partTransport) Resume(at uint64)      { p.resumed = at }
func (p *partTransport) Query(_ context.Context, publisher uint64, _ kvevent.QueryRequest) (*Answer, error) {
	if !slices.Contains(p.knows, publisher) {
		return nil, errNotHere
	}
	return &Answer{LastEventID: publisher}, nil
}

// onCombined runs f with two parts and what came out of both so far.
func onCombined(t *testing.T, f func(c *Combined, a, b *partTransport, got *[]FrameKind)) {
	synctest.Test(t, func(t *testing.T) {
		a := &partTransport{frames: make(chan Frame), knows: []uint64{1}, stats: TransportStats{Connected: true, Dropped: 2}}
		b := &partTransport{frames: make(chan Frame), knows: []uint64{2}, stats: TransportStats{Connected: true, Reconnects: 3}}
		c := Combine(a, b)
		var got []FrameKind
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				select {
				case fr := <-c.Frames():
					got = append(got, fr.Kind)
				case <-c.ctx.Done():
					return
				}
			}
		}()
		f(c, a, b, &got)
		for range 2 {
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		<-ended
	})
}

// TestCombinedIsDisconnectedWhileAnyPartIs: nobody is forgotten who may only be
// out of reach.
func TestCombinedIsDisconnectedWhileAnyPartIs(t *testing.T) {
	onCombined(t, func(c *Combined, a, b *partTransport, got *[]FrameKind) {
		for _, step := range []struct {
			part *partTransport
			kind FrameKind
			want []FrameKind
		}{
			{a, FrameConnected, nil},
			{a, FrameDisconnected, []FrameKind{FrameDisconnected}},
			{a, FrameDisconnected, nil},
			{b, FrameDisconnected, nil},
			{b, FrameEvents, []FrameKind{FrameEvents}},
			{a, FrameConnected, nil},
			{b, FrameConnected, []FrameKind{FrameConnected}},
			{b, FrameConnected, nil},
		} {
			*got = nil
			step.part.frames <- Frame{Kind: step.kind}
			synctest.Wait()
			if !slices.Equal(*got, step.want) {
				t.Errorf("frame %d: got %v, want %v", step.kind, *got, step.want)
			}
		}
		if s := c.Stats(); !s.Connected || s.Dropped != 2 || s.Reconnects != 3 {
			t.Errorf("stats %+v", s)
		}
		b.stats.Connected = false
		if c.Stats().Connected {
			t.Error("connected while a part is not")
		}
	})
}

// TestCombinedAsksWhereAPublisherAnnouncedItself: and everywhere before it has.
func TestCombinedAsksWhereAPublisherAnnouncedItself(t *testing.T) {
	onCombined(t, func(c *Combined, a, b *partTransport, _ *[]FrameKind) {
		for _, p := range []uint64{1, 2} {
			if got, err := c.Query(t.Context(), p, kvevent.QueryRequest{}); err != nil || got.LastEventID != p {
				t.Errorf("publisher %d, unannounced: %v, %v", p, got, err)
			}
		}
		if _, err := c.Query(t.Context(), 3, kvevent.QueryRequest{}); !errors.Is(err, errNotHere) {
			t.Errorf("nobody's publisher: %v", err)
		}
		p := newTestPublisher(1, workerOwner(1), 0)
		b.frames <- p.announce()
		synctest.Wait()
		if _, err := c.Query(t.Context(), 1, kvevent.QueryRequest{}); !errors.Is(err, errNotHere) {
			t.Errorf("publisher 1 announced itself at the part that does not know it: %v", err)
		}
		if c.Resume(9); a.resumed != 9 || b.resumed != 9 {
			t.Errorf("resumed at %d and %d", a.resumed, b.resumed)
		}
	})
}
