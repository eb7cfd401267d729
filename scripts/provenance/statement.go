package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://slsa.dev/provenance/v1"
	buildType     = "https://github.com/blockyard-ai/blockyard/blob/main/docs/release.md#build-type-1"
	// source is where the commit lies.
	source = "git+https://github.com/blockyard-ai/blockyard"
)

// statement is an in-toto statement with the fields that provenance writes.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

// resource is in-toto's ResourceDescriptor.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// predicate is SLSA provenance v1.
type predicate struct {
	BuildDefinition struct {
		BuildType            string             `json:"buildType"`
		ExternalParameters   externalParameters `json:"externalParameters"`
		ResolvedDependencies []resource         `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder builder `json:"builder"`
	} `json:"runDetails"`
}

type externalParameters struct {
	Version string `json:"version"`
	Source  string `json:"source"`
}

type builder struct {
	ID string `json:"id"`
}

// build is what the caller says of a build.
type build struct{ version, commit, goVersion, builder string }

var commitForm = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// validate names the first value of the build that is out of range.
func (b *build) validate() error {
	switch u, err := url.Parse(b.builder); {
	case b.version == "":
		return fmt.Errorf("-version %q: want the version of the release, such as v1.2.3", b.version)
	case !commitForm.MatchString(b.commit):
		return fmt.Errorf("-commit %q: want 40 or 64 hexadecimal digits", b.commit)
	case err != nil || !u.IsAbs() || u.Host == "" && u.Opaque == "":
		return fmt.Errorf("-builder %q: want a URI, such as https://ci.example/builders/1", b.builder)
	}
	return nil
}

// describe returns the statement of a build with these subjects.
func describe(b *build, subjects []resource) *statement {
	s := &statement{Type: statementType, Subject: subjects, PredicateType: predicateType}
	d := &s.Predicate.BuildDefinition
	d.BuildType, d.ExternalParameters = buildType, externalParameters{b.version, source}
	d.ResolvedDependencies = []resource{
		{URI: source, Digest: map[string]string{"gitCommit": b.commit}},
		{Name: "go", URI: "pkg:generic/go@" + strings.TrimPrefix(b.goVersion, "go")},
	}
	s.Predicate.RunDetails.Builder.ID = b.builder
	return s
}

// subjects returns the files of a directory with their digests, by name.
func subjects(dir string) ([]resource, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("files of the release: %w", err)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("files of the release: %s is empty", dir)
	}
	all := make([]resource, len(entries))
	for i, e := range entries {
		if !e.Type().IsRegular() {
			return nil, fmt.Errorf("files of the release: %s is no regular file", filepath.Join(dir, e.Name()))
		}
		sum, err := digest(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		all[i] = resource{Name: e.Name(), Digest: map[string]string{"sha256": sum}}
	}
	return all, nil
}

// digest returns the SHA-256 of a file in hexadecimal.
func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("digest: %w", err)
	}
	defer func() { _ = f.Close() }() // read only
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("digest: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
