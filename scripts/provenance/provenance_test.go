package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

func valid() build {
	return build{version: "v1.2.3", commit: commit, goVersion: "go1.26.1", builder: "https://ci.example/builders/1"}
}

// files makes a directory with files by name.
func files(t *testing.T, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestStatementIsProvenance: each file is a subject with its digest, in the form of in-toto's statement
// v1 and SLSA's provenance v1. The digests are those that sha256sum prints.
func TestStatementIsProvenance(t *testing.T) {
	want := `{
  "_type": "https://in-toto.io/Statement/v1",
  "subject": [
    {
      "name": "a.tar.gz",
      "digest": {
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
      }
    },
    {
      "name": "b.cdx.json",
      "digest": {
        "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
      }
    }
  ],
  "predicateType": "https://slsa.dev/provenance/v1",
  "predicate": {
    "buildDefinition": {
      "buildType": "https://github.com/blockyard-ai/blockyard/blob/main/docs/release.md#build-type-1",
      "externalParameters": {
        "version": "v1.2.3",
        "source": "git+https://github.com/blockyard-ai/blockyard"
      },
      "resolvedDependencies": [
        {
          "uri": "git+https://github.com/blockyard-ai/blockyard",
          "digest": {
            "gitCommit": "0123456789abcdef0123456789abcdef01234567"
          }
        },
        {
          "name": "go",
          "uri": "pkg:generic/go@1.26.1"
        }
      ]
    },
    "runDetails": {
      "builder": {
        "id": "https://ci.example/builders/1"
      }
    }
  }
}
`
	dir := files(t, map[string]string{"b.cdx.json": "", "a.tar.gz": "abc"})
	for range 2 { // the same files give the same statement
		var out bytes.Buffer
		b := valid()
		if err := write(&out, &b, dir); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("got\n%s\nwant\n%s", out.String(), want)
		}
	}
}

// TestBuildTypeIsSpecified: the page that the build type names has its section and its parameters.
func TestBuildTypeIsSpecified(t *testing.T) {
	page, err := os.ReadFile("../../docs/release.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n## Build type 1\n", "`version`", "`source`", "`" + source + "`"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/release.md lacks %q", want)
		}
	}
}

func TestWrongBuildsAreRefused(t *testing.T) {
	dir := files(t, map[string]string{"a": "a"})
	nested := t.TempDir()
	if err := os.Mkdir(filepath.Join(nested, "left-over"), 0o700); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(b *build, dir *string){
		"-version":                func(b *build, _ *string) { b.version = "" },
		`-commit "0123"`:          func(b *build, _ *string) { b.commit = "0123" },
		`-builder ""`:             func(b *build, _ *string) { b.builder = "" },
		`-builder "me"`:           func(b *build, _ *string) { b.builder = "me" },
		`-builder "https://"`:     func(b *build, _ *string) { b.builder = "https://" },
		"is empty":                func(_ *build, dir *string) { *dir = t.TempDir() },
		"no such file":            func(_ *build, dir *string) { *dir = filepath.Join(*dir, "absent") },
		"left-over is no regular": func(_ *build, dir *string) { *dir = nested },
	} {
		b, at := valid(), dir
		change(&b, &at)
		var out bytes.Buffer
		if err := write(&out, &b, at); err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("error %v with %d bytes, want one with %q", err, out.Len(), want)
		}
	}
}
