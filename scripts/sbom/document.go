package main

import (
	"encoding/base64"
	"encoding/hex"
	"runtime/debug"
	"strings"
)

// document is a CycloneDX document with the fields that sbom writes.
type document struct {
	Schema       string       `json:"$schema"`
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string    `json:"timestamp,omitempty"`
	Component component `json:"component"`
}

type component struct {
	Ref     string `json:"bom-ref"`
	Type    string `json:"type"` // application or library
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

// dependency says that one component uses others. Build information does not say which
// module uses which, so the binary depends on every module.
type dependency struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn"`
}

// describe returns the document of a binary with this build information and these
// shared libraries. The document has no time.
func describe(info *debug.BuildInfo, libraries []string) document {
	binary := application(info)
	standard := "std@" + strings.TrimPrefix(info.GoVersion, "go")
	components := []component{{
		Ref: "pkg:golang/" + standard, Type: "library", Name: "std",
		Version: strings.TrimPrefix(info.GoVersion, "go"), PURL: "pkg:golang/" + standard,
	}}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		components = append(components, module(dep))
	}
	for _, name := range libraries {
		components = append(components, component{Ref: "shared:" + name, Type: "library", Name: name})
	}
	refs := make([]string, 0, len(components))
	for _, c := range components {
		refs = append(refs, c.Ref)
	}
	return document{
		Schema:       "http://cyclonedx.org/schema/bom-1.6.schema.json",
		Format:       "CycloneDX",
		SpecVersion:  "1.6",
		Version:      1,
		Metadata:     metadata{Component: binary},
		Components:   components,
		Dependencies: []dependency{{Ref: binary.Ref, On: refs}},
	}
}

// application is the component of the binary. A module may have several commands, so that
// the name is the command's import path, and the package URL ends in its directory.
func application(info *debug.BuildInfo) component {
	c := module(&info.Main)
	c.Type, c.Name = "application", info.Path
	if dir, ok := strings.CutPrefix(info.Path, info.Main.Path+"/"); ok {
		c.PURL += "#" + dir
		c.Ref = c.PURL
	}
	return c
}

// module returns the component of a Go module. Package URLs of Go modules are in lower
// case.
func module(m *debug.Module) component {
	url := "pkg:golang/" + strings.ToLower(m.Path)
	if m.Version != "" {
		// "+" is the only character of a version that must be escaped.
		url += "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	}
	c := component{Ref: url, Type: "library", Name: m.Path, Version: m.Version, PURL: url}
	if sum, ok := strings.CutPrefix(m.Sum, "h1:"); ok {
		if raw, err := base64.StdEncoding.DecodeString(sum); err == nil {
			c.Hashes = []hash{{Algorithm: "SHA-256", Content: hex.EncodeToString(raw)}}
		}
	}
	return c
}
