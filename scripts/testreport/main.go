package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	path := flag.String("tally", "", "file to add the counts to")
	flag.Parse()
	counts, err := newReporter(os.Stdout).read(os.Stdin)
	if err == nil {
		err = appendTally(*path, counts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	if counts.failed > 0 {
		os.Exit(1)
	}
}

// appendTally adds the line "PASSED FAILED" to the file at path.
func appendTally(path string, c tally) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("-tally: %w", err)
	}
	_, err = fmt.Fprintln(f, c.passed, c.failed)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("-tally: %w", err)
	}
	return nil
}
