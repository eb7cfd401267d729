package main

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDocumentNamesModulesStandardLibraryAndSharedLibraries(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.1",
		Path:      "example.org/Tool/cmd/tool",
		Main:      debug.Module{Path: "example.org/Tool", Version: "v1.0.0+x"},
		Deps: []*debug.Module{
			{Path: "example.org/a", Version: "v0.1.0", Sum: "h1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="},
			{Path: "example.org/b", Version: "v0.2.0", Replace: &debug.Module{Path: "example.org/fork", Version: "v0.2.1"}},
		},
	}
	doc := describe(info, []string{"libzmq.so.5"})

	tool := component{
		Ref: "pkg:golang/example.org/tool@v1.0.0%2Bx#cmd/tool", Type: "application",
		Name: "example.org/Tool/cmd/tool", Version: "v1.0.0+x", PURL: "pkg:golang/example.org/tool@v1.0.0%2Bx#cmd/tool",
	}
	if diff := cmp.Diff(tool, doc.Metadata.Component); diff != "" {
		t.Errorf("binary (-want +got):\n%s", diff)
	}
	sum := hash{"SHA-256", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"}
	want := []component{
		{Ref: "pkg:golang/std@1.26.1", Type: "library", Name: "std", Version: "1.26.1", PURL: "pkg:golang/std@1.26.1"},
		{
			Ref: "pkg:golang/example.org/a@v0.1.0", Type: "library", Name: "example.org/a", Version: "v0.1.0",
			PURL: "pkg:golang/example.org/a@v0.1.0", Hashes: []hash{sum},
		},
		{
			Ref: "pkg:golang/example.org/fork@v0.2.1", Type: "library", Name: "example.org/fork", Version: "v0.2.1",
			PURL: "pkg:golang/example.org/fork@v0.2.1",
		},
		{Ref: "shared:libzmq.so.5", Type: "library", Name: "libzmq.so.5"},
	}
	if diff := cmp.Diff(want, doc.Components); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
	refs := []string{"pkg:golang/std@1.26.1", "pkg:golang/example.org/a@v0.1.0", "pkg:golang/example.org/fork@v0.2.1", "shared:libzmq.so.5"}
	if diff := cmp.Diff([]dependency{{tool.Ref, refs}}, doc.Dependencies); diff != "" {
		t.Errorf("dependencies (-want +got):\n%s", diff)
	}
}

// The binary of this test is a Go binary, but the go command leaves the modules out
// of its build information.
func TestDocumentIsMadeFromABinary(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := write(&out, self, "v9.9.9", "86400"); err != nil {
		t.Fatal(err)
	}
	var doc document
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if got := doc.Metadata; got.Component.Version != "v9.9.9" || got.Timestamp != "1970-01-02T00:00:00Z" {
		t.Errorf("metadata %+v", got)
	}
	if len(doc.Components) == 0 || doc.Components[0].Name != "std" || doc.Components[0].Version == "" {
		t.Errorf("%s has no standard library: %+v", self, doc.Components)
	}
}

func TestWrongInputIsAnErrorThatNamesIt(t *testing.T) {
	if err := write(&bytes.Buffer{}, "doc.go", "", ""); err == nil || !strings.Contains(err.Error(), "build information") {
		t.Errorf("a text file: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := write(&bytes.Buffer{}, self, "", "tomorrow"); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("a bad time: %v", err)
	}
}
