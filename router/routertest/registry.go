package routertest

import (
	"os"
	"testing"
	"testing/synctest"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// OnRegistry runs f with a router on a registry that joins one test transport.
func OnRegistry(t *testing.T, o registry.Options, f func(b *Bench, r *registry.Source)) {
	OnRegistryWith(t, router.Options{}, o, f)
}

// OnRegistryWith runs f with a router of some options on a registry.
func OnRegistryWith(t *testing.T, options router.Options, o registry.Options, f func(b *Bench, r *registry.Source)) {
	synctest.Test(t, func(t *testing.T) {
		b := &Bench{T: t, Transport: sourcetest.NewTransport()}
		g, err := registry.New(o, b.Transport)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		b.run(options, g, func(b *Bench) {
			defer g.Close()
			f(b, g)
		})
	})
}

// SomeWorker is a registration of one worker.
func SomeWorker(id uint64) *registry.Registration {
	return &registry.Registration{WorkerID: id, Model: "m", BlockSize: sourcetest.BlockSize, Endpoint: "http://node-1:8000"}
}

// WriteFile replaces a file at once.
func WriteFile(t *testing.T, name, text string) {
	t.Helper()
	// As an operator should: whoever reads sees the old one or the new one.
	if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}
