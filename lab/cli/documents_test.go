package cli

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/command"
)

const repository = "../.."

// otherPrograms are the programs of documents whose arguments are not looked at here.
func otherPrograms() []string {
	return []string{
		"apt-get", "cd", "cut", "dpkg", "echo", "exec", "export", "grep", "head", "install", "jobs", "jq", "kill", "man", "mkdir", "od", "openssl", "pip", "printf",
		"python", "rm", "seq", "sha256sum", "shred", "sleep", "source", "sudo", "systemctl", "systemd-sysusers", "umask", "wait",
		"docker", "envoy", "git", "helm", "kubectl", "nats", "valgrind", "vllm",
		"curl", "$CONTROL/v1/", "$CONTROL/busy_threshold",
	}
}

// fenced is one fenced block of a document.
type fenced struct {
	where, language, text string
	// notRun is why no test runs the commands. isRun is true when interop/pages runs them.
	notRun string
	isRun  bool
}

// A document says right before a block of commands that the block is not run, and why. A page whose other blocks
// interop/pages runs says so.
var (
	notRun = regexp.MustCompile(`^<!-- not run: ((?:needs|changes|stays in|the test has) .*) -->$`)
	isRun  = "<!-- interop/pages runs these commands -->"
)

// fencedBlocks returns the fenced blocks of every document, without build output and hidden directories.
func fencedBlocks(t *testing.T) (blocks []fenced) {
	t.Helper()
	root := os.DirFS(repository)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		base := path.Base(name)
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(base, ".") || slices.Contains([]string{"bin", "dist", "site"}, name)):
			return fs.SkipDir
		case path.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		var open *fenced
		run, why := strings.Contains(string(text), isRun), ""
		for i, line := range strings.Split(string(text), "\n") {
			language, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
			switch {
			case !fence && open != nil:
				open.text += line + "\n"
			case fence && open == nil:
				open = &fenced{where: fmt.Sprintf("%s:%d", name, i+1), language: language, notRun: why, isRun: run && why == ""}
				why = ""
			case fence:
				blocks, open = append(blocks, *open), nil
			case notRun.MatchString(line):
				why = notRun.FindStringSubmatch(line)[1]
			case strings.HasPrefix(line, "<!-- not run"):
				return fmt.Errorf("%s:%d: %s: want %s", name, i+1, line, notRun)
			case why != "" && strings.TrimSpace(line) != "":
				return fmt.Errorf("%s:%d: a block of commands must follow the line %q", name, i, why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return blocks
}

// TestDocumentedCommandsAreRun: each block of commands is run by interop/pages, or has commands of ours alone, which
// TestDocumentedCommandsAreTaken parses, or a line above it says why it is not run.
func TestDocumentedCommandsAreRun(t *testing.T) {
	run, parsed, left := 0, 0, 0
	for _, b := range fencedBlocks(t) {
		if b.language != "sh" {
			if b.notRun != "" {
				t.Errorf("%s: is no block of commands, and is marked as not run", b.where)
			}
			continue
		}
		commands, err := shellCommands(b.text)
		if err != nil {
			t.Fatal(err)
		}
		others := slices.ContainsFunc(commands, func(c shellCommand) bool {
			name := c.words[0]
			return !ours.MatchString(name) && name != "make" && name != "go" && !strings.HasPrefix(name, "scripts/")
		})
		switch {
		case b.isRun:
			run++
		case b.notRun != "":
			left++
		case !others:
			parsed++
		default:
			t.Errorf("%s: no test runs these commands: have interop/pages run them, or say why not in a line <!-- not run: needs … --> above", b.where)
		}
	}
	t.Logf("%d blocks are run, %d are parsed, %d say why they are not run", run, parsed, left)
	if run < 40 {
		t.Errorf("%d blocks are run, want 40 or more: are the pages found?", run)
	}
}

// TestDocumentedCommandsAreTaken: the programs take each command of a block "sh" in README.md, docs and
// connector, and agent and router would start with it. A target of make exists and uses the variables that it
// is given. Programs of others are on a list, so that a wrong name is noticed. A block in another language
// has no commands.
func TestDocumentedCommandsAreTaken(t *testing.T) {
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "BLOCKYARD_") || strings.HasPrefix(name, "DYN_") {
			t.Setenv(name, "")
			os.Unsetenv(name)
		}
	}
	blocks := fencedBlocks(t)
	c := checker{files: exampleFiles(t, blocks), targets: makeTargets(t), done: make(map[string]int)}
	for _, b := range blocks {
		if b.language != "sh" {
			if first, _, _ := strings.Cut(b.text, " "); b.language == "" && (slices.Contains([]string{"make", "curl", "vllm", "pip", "$CONTROL"}, first) || ours.MatchString(first)) {
				t.Errorf("%s: a block of commands is not marked with sh", b.where)
			}
			continue
		}
		t.Run(b.where, func(t *testing.T) { c.script(t, b.text) })
	}
	for program, least := range map[string]int{"blockyard": 60, "blockyard-lab": 6, "make": 25} {
		if c.done[program] < least {
			t.Errorf("the documents have %d commands of %s, want %d: are the blocks found?", c.done[program], program, least)
		}
	}
}

// ours matches the name of one of our programs.
var ours = regexp.MustCompile(`^(?:bin/)?(blockyard(?:-lab)?)$`)

// exampleFiles writes each YAML of the documents whose first line is its name to a file, and returns the files
// by their names.
func exampleFiles(t *testing.T, blocks []fenced) map[string]string {
	t.Helper()
	files, dir := make(map[string]string), t.TempDir()
	for _, b := range blocks {
		first, _, _ := strings.Cut(b.text, "\n")
		name, ok := strings.CutPrefix(first, "# ")
		if b.language != "yaml" || !ok || path.Ext(name) != ".yaml" || strings.Contains(name, " ") {
			continue
		}
		files[name] = filepath.Join(dir, path.Base(name))
		if err := os.WriteFile(files[name], []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"/etc/blockyard/blockyard.yaml", "/etc/blockyard/limits.yaml", "classes.yaml"} {
		if files[name] == "" {
			t.Errorf("the documents do not show the file %s", name)
		}
	}
	return files
}

// makeTargets returns the text of each rule of the Makefile that "make help" lists.
func makeTargets(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets := make(map[string]string)
	for rule := range strings.SplitSeq(string(text), "\n\n") {
		if m := regexp.MustCompile(`(?m)^([a-z-]+):.*## `).FindStringSubmatch(rule); m != nil {
			targets[m[1]] = rule
		}
	}
	return targets
}

// checker checks commands. done counts those of each program.
type checker struct {
	files   map[string]string // stand for those that documents name
	targets map[string]string
	done    map[string]int
}

func (c *checker) script(t *testing.T, text string) {
	t.Helper()
	commands, err := shellCommands(text)
	if err != nil {
		t.Error(err)
	}
	for _, command := range commands {
		name := command.words[0]
		switch m := ours.FindStringSubmatch(name); {
		case m != nil:
			c.done[m[1]]++
			if err := c.product(t, m[1], command); err != nil {
				t.Errorf("%s: %v", strings.Join(command.words, " "), err)
			}
		case name == "make":
			c.done[name]++
			c.make(t, command.words[1:])
		case name == "go":
			c.packages(t, command.words)
		case strings.HasPrefix(name, "scripts/"):
			if _, err := os.Stat(filepath.Join(repository, name)); err != nil {
				t.Error(err)
			}
		case !slices.ContainsFunc(otherPrograms(), func(p string) bool { return name == p || strings.HasSuffix(p, "/") && strings.HasPrefix(name, p) }):
			t.Errorf("%s: unknown program: correct it, or add it to otherPrograms()", name)
		}
	}
}

// product has a program parse a command. Agent and router check their settings too.
func (c *checker) product(t *testing.T, program string, written shellCommand) error {
	args := slices.Clone(written.words[1:])
	for i := range args {
		if file, ok := c.files[args[i]]; ok {
			args[i] = file
		}
	}
	for _, e := range written.environ {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
		defer os.Unsetenv(name)
	}
	p := command.Product("")
	switch {
	case len(args) == 0:
		return fmt.Errorf("no subcommand")
	case program == "blockyard-lab":
		p = New("")
	case args[0] == "demo" || args[0] == "bench":
		p = New("")
	case args[0] == "agent" || args[0] == "router":
		var text bytes.Buffer
		if status := p.Run(t.Context(), append([]string{"config", "print"}, args...), io.Discard, &text); status != 0 {
			return fmt.Errorf("%s", strings.TrimSpace(text.String()))
		}
		return nil
	}
	parser, err := p.Parser(io.Discard, io.Discard, func(int) {})
	if err != nil {
		return err
	}
	if _, err = parser.Parse(args); slices.Contains(args, "--help") {
		return nil // kong has shown the help, and goes on parsing
	}
	return err
}

// make checks targets and variables, and the commands of ours that the target then runs.
func (c *checker) make(t *testing.T, args []string) {
	t.Helper()
	var rules string
	var variables []string
	for _, a := range args {
		if isAssignment(a) {
			variables = append(variables, a)
		} else if rule, ok := c.targets[a]; ok {
			rules += rule + "\n"
		} else {
			t.Errorf("make %s: there is no such target", a)
		}
	}
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		if !strings.Contains(rules, "$("+name+")") {
			t.Errorf("make %s: the target does not use %s", strings.Join(args, " "), name)
		}
		rules = strings.ReplaceAll(rules, "$("+name+")", value)
	}
	rules = regexp.MustCompile(`(?m)^(\w+) \?= (.*)$`).ReplaceAllString(rules, "")
	for line := range strings.Lines(rules) {
		if text, ok := strings.CutPrefix(line, "\t@bin/"); ok && len(variables) > 0 {
			c.script(t, "bin/"+regexp.MustCompile(`\$\(\w+\)`).ReplaceAllString(text, ""))
		}
	}
}

// packages checks that the packages of this repository exist that a go command names.
func (c *checker) packages(t *testing.T, words []string) {
	t.Helper()
	for _, w := range words {
		if dir, ok := strings.CutPrefix(w, "./"); ok {
			if _, err := os.Stat(filepath.Join(repository, strings.TrimSuffix(dir, "..."))); err != nil {
				t.Errorf("%s: %v", strings.Join(words, " "), err)
			}
		}
	}
}
