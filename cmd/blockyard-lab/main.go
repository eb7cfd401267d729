package main

import (
	"os"

	"github.com/blockyard-ai/blockyard/lab/cli"
)

// version is set by the linker (see the Makefile); empty in a plain go build.
var version string

func main() { os.Exit(cli.New(version).Main()) }
