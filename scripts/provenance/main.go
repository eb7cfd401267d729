package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
)

func main() {
	b := build{goVersion: runtime.Version()}
	flag.StringVar(&b.version, "version", "", "the version of the release")
	flag.StringVar(&b.commit, "commit", "", "the commit that the release was built from")
	flag.StringVar(&b.builder, "builder", "", "the URI of who built the release")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: provenance -version VERSION -commit COMMIT -builder URI DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Stdout, &b, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "provenance:", err)
		os.Exit(1)
	}
}

// write writes the statement of a build that made the files of a directory.
func write(w io.Writer, b *build, dir string) error {
	if err := b.validate(); err != nil {
		return err
	}
	files, err := subjects(dir)
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	if err := out.Encode(describe(b, files)); err != nil {
		return fmt.Errorf("write the statement: %w", err)
	}
	return nil
}
