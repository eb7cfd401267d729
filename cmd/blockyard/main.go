package main

import (
	"os"

	"github.com/blockyard-ai/blockyard/internal/command"
)

// version is set by the linker (see the Makefile); empty in a plain go build.
var version string

func main() { os.Exit(command.Product(version).Main()) }
