package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
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
	var emptied []kv.Tier
	var refused []string
	c := Config{Reset: reset}
	c.ServeResets(t.Context(), func(_ context.Context, tier kv.Tier) error {
		if tier == kv.TierDevice {
			return active
		}
		emptied = append(emptied, tier)
		return nil
	}, func(l CacheLevel, err error) { refused = append(refused, fmt.Sprintf("%s: %v", l, err)) })
	if !slices.Equal(emptied, []kv.Tier{kv.TierDisk, kv.TierHost, kv.TierHost}) {
		t.Errorf("emptied %v", emptied)
	}
	want := []string{"cache level 0: cache level 0: want 1 (G1) to 4 (G4)", "G1: blocks are in use"}
	if !slices.Equal(refused, want) {
		t.Errorf("refused %q, want %q", refused, want)
	}
}

func TestResetsEndWithTheirContextAndWithoutAChannel(t *testing.T) {
	never := func(context.Context, kv.Tier) error { t.Error("a tier was emptied"); return nil }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []Config{{}, {Reset: make(chan CacheLevel)}} {
		c.ServeResets(ctx, never, func(CacheLevel, error) {})
	}
}
