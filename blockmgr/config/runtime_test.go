package config

import (
	"context"
	"errors"
	"slices"
	"testing"
)

func TestContextEndsWithWhateverEndsFirst(t *testing.T) {
	for name, end := range map[string]func(cancellation, parent, own func()){
		"cancellation": func(cancellation, _, _ func()) { cancellation() },
		"parent":       func(_, parent, _ func()) { parent() },
		"own cancel":   func(_, _, own func()) { own() },
	} {
		t.Run(name, func(t *testing.T) {
			token, cancelToken := context.WithCancel(t.Context())
			defer cancelToken()
			parent, cancelParent := context.WithCancel(t.Context())
			defer cancelParent()
			r := Runtime{WorkerID: 1, Cancellation: token.Done()}
			ctx, cancel := r.Context(parent)
			defer cancel()
			if ctx.Err() != nil {
				t.Fatal("ended from the start")
			}
			end(cancelToken, cancelParent, cancel)
			<-ctx.Done()
		})
	}
}

func TestRuntimeWithoutCancellationLivesAsLongAsItsParent(t *testing.T) {
	parent, cancelParent := context.WithCancel(t.Context())
	r := Runtime{WorkerID: 1}
	ctx, cancel := r.Context(parent)
	defer cancel()
	cancelParent()
	if <-ctx.Done(); ctx.Err() != context.Canceled {
		t.Errorf("got %v", ctx.Err())
	}
}

func TestResetsAreServedInOrderAndRefusalsAreTold(t *testing.T) {
	reset := make(chan CacheLevel, 8)
	for _, l := range []CacheLevel{G3, G2, 0, G1, G2} {
		reset <- l
	}
	close(reset)
	active := errors.New("blocks are in use")
	var emptied, refused []CacheLevel
	c := Config{Reset: reset}
	c.ServeResets(t.Context(), func(_ context.Context, l CacheLevel) error {
		if l == G1 || l == 0 {
			return active
		}
		emptied = append(emptied, l)
		return nil
	}, func(l CacheLevel, err error) {
		refused = append(refused, l)
		if !errors.Is(err, active) {
			t.Errorf("%s: %v", l, err)
		}
	})
	if !slices.Equal(emptied, []CacheLevel{G3, G2, G2}) || !slices.Equal(refused, []CacheLevel{0, G1}) {
		t.Errorf("emptied %v, refused %v", emptied, refused)
	}
}

func TestResetsEndWithTheirContextAndWithoutAChannel(t *testing.T) {
	never := func(context.Context, CacheLevel) error { t.Error("a tier was emptied"); return nil }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []Config{{}, {Reset: make(chan CacheLevel)}} {
		c.ServeResets(ctx, never, func(CacheLevel, error) {})
	}
}
