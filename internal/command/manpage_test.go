package command

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestManualPages: each command has a page with all of its flags, and no page has a hidden one. Roff
// finds no fault in any.
func TestManualPages(t *testing.T) {
	withoutSettings(t)
	dir := t.TempDir()
	var out bytes.Buffer
	if status := Product("").Run(t.Context(), []string{"man", "--dir", dir}, &out, &out); status != 0 {
		t.Fatal(out.String())
	}
	parser, err := Product("").Parser(&out, &out, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	// A page has several commands, and one may show a flag that another hides.
	shared := func(f *kong.Flag) bool { return f.Hidden && f.Name == "durable-kv-events" }
	var check func(page string, node *kong.Node)
	check = func(page string, node *kong.Node) {
		for _, f := range node.Flags {
			if has := strings.Contains(page, "\\-\\-"+strings.ReplaceAll(f.Name, "-", "\\-")+"\\fR"); has == f.Hidden && !shared(f) {
				t.Errorf("%s: --%s: in the page %t, hidden %t", node.FullPath(), f.Name, has, f.Hidden)
			}
		}
		for _, child := range node.Children {
			check(page, child)
		}
	}
	pages := 0
	for _, command := range parser.Model.Children {
		text, err := os.ReadFile(filepath.Join(dir, "blockyard-"+command.Name+".1"))
		if (err == nil) == command.Hidden {
			t.Errorf("%s: hidden %t: %v", command.Name, command.Hidden, err)
		}
		if err == nil {
			check(string(text), command)
			pages++
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(files) != pages+1 {
		t.Errorf("pages %v, %v; want one for each of %d commands and the program's", files, err, pages)
	}
	if groff, err := exec.LookPath("groff"); err == nil {
		for _, f := range files {
			if said, err := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z", f).CombinedOutput(); err != nil || len(said) > 0 {
				t.Errorf("%s: %v\n%s", f, err, said)
			}
		}
	}
	out.Reset()
	if status := Product("").Run(t.Context(), []string{"man"}, &out, &out); status != 0 || !strings.Contains(out.String(), "The agent keeps the blocks of a node") {
		t.Errorf("status %d\n%s", status, out.String())
	}
	for want, args := range map[string][]string{"no such command": {"man", "nothing"}, "--dir writes all pages": {"man", "agent", "--dir", dir}} {
		out.Reset()
		if status := Product("").Run(t.Context(), args, &out, &out); status != 1 || !strings.Contains(out.String(), want) {
			t.Errorf("%q: status %d, %s; want %q", args, status, out.String(), want)
		}
	}
}
