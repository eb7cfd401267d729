package main

import (
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

func main() {
	version := flag.String("version", "", "the version of the binary (default: the one in its build information)")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: sbom [-version VERSION] BINARY")
		os.Exit(2)
	}
	if err := write(os.Stdout, flag.Arg(0), *version, os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// write writes the document of the binary at path. With an empty version the document has
// the version in the binary. With an empty epoch it has no time.
func write(w io.Writer, path, version, epoch string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("build information: %w", err)
	}
	libraries, err := sharedLibraries(path)
	if err != nil {
		return err
	}
	if version != "" {
		info.Main.Version = version
	}
	doc := describe(info, libraries)
	if epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		doc.Metadata.Timestamp = time.Unix(seconds, 0).UTC().Format(time.RFC3339)
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	if err := out.Encode(doc); err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	return nil
}

// sharedLibraries lists the libraries that the dynamic linker loads for the binary.
func sharedLibraries(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("shared libraries: %w", err)
	}
	defer func() { _ = f.Close() }() // read only
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("shared libraries of %s: %w", path, err)
	}
	return libraries, nil
}
