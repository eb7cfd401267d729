package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/alecthomas/kong"
)

// labName is the program that has the commands of the lab.
const labName = "blockyard-lab"

// labCommand is a command of blockyard-lab under its name here: "blockyard demo"
// becomes the process "blockyard-lab demo".
type labCommand struct {
	Args []string `arg:"" optional:"" help:"Arguments of blockyard-lab; --help shows them."`
}

// Run replaces this process by the blockyard-lab beside it. It returns only when
// that fails.
func (c *labCommand) Run(command *kong.Context) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this binary: %w", err)
	}
	lab := filepath.Join(filepath.Dir(exe), labName)
	name := command.Selected().Name
	err = syscall.Exec(lab, append([]string{labName, name}, c.Args...), os.Environ())
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %s is not beside this binary: want %s", name, labName, lab)
	}
	return fmt.Errorf("%s: run %s: %w", name, lab, err)
}
