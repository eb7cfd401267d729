package router

import (
	"context"
	"os"
	"sync"
	"testing"
	"testing/synctest"
)

// onRegistry runs f with a router on a registry that joins one test transport.
func onRegistry(t *testing.T, o RegistryOptions, f func(b *bench, r *Registry)) {
	onRegistryWith(t, Options{}, o, f)
}

func onRegistryWith(t *testing.T, options Options, o RegistryOptions, f func(b *bench, r *Registry)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, transport: newTestTransport()}
		g, err := NewRegistry(o, b.transport)
		if err != nil {
			t.Fatal(err)
		}
		if b.router, err = New(options, g); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = b.router.Run(ctx) })
		defer running.Wait()
		defer cancel()
		defer g.Close()
		f(b, g)
	})
}

func someWorker(id uint64) *Registration {
	return &Registration{WorkerID: id, Model: "m", BlockSize: testBlockSize, Endpoint: "http://node-1:8000"}
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	// As an operator should: whoever reads sees the old one or the new one.
	if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}
