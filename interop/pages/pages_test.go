package pages

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// patience bounds how long a block's output is waited for, pause is the time between two tries.
	patience = 5 * time.Minute
	pause    = 250 * time.Millisecond

	// end is the line after the output of a block. The block's status follows it.
	end = "end-of-the-block"
)

// TestQuickStart: docs/quickstart.md works from the start of a node to a broken worker that doctor finds, and to the end of
// all its processes.
func TestQuickStart(t *testing.T) {
	if os.Getenv("BLOCKYARD_BIN") == "" {
		t.Skip("BLOCKYARD_BIN is not set: make test-ops")
	}
	run(t, reading{page: "quickstart.md", replaced: map[string]string{
		"/tmp/blockyard":           t.TempDir(),
		"/dev/shm/blockyard-start": memoryDir(t),
	}})
}

// memoryDir returns a new directory in memory, until the end of the test.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "blockyard-pages-")
	if err != nil {
		t.Skip("the page needs /dev/shm: ", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// step is a block of commands with the lines that it must show. Without such lines every command must succeed.
type step struct {
	line     int
	commands string
	shown    []string
}

// notRun is the line of a page right before a block of commands that is not run, with the reason.
const notRun = "<!-- not run: "

// runHere is the line of a page whose commands this package runs.
const runHere = "<!-- interop/pages runs these commands -->"

// writeExamples writes each block of YAML that begins with the path of a file in a directory of the test to that file.
func writeExamples(t *testing.T, page string) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?m)^```yaml\n# (/\\S+\\.yaml)\n((?s:.*?))^```").FindAllStringSubmatch(page, -1) {
		if !strings.HasPrefix(m[1], os.TempDir()) {
			t.Errorf("%s is no file of the test: replace its directory", m[1])
		} else if err := os.WriteFile(m[1], []byte("# "+m[1]+"\n"+m[2]), 0o600); err != nil {
			t.Error(err)
		}
	}
}

// steps returns the steps of a page. A block without a language has the lines of the step right before it. A block below
// a line notRun is no step.
func steps(page string) (found []step) {
	var open *step
	language, after, left := "", false, false
	for i, line := range strings.Split(page, "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && open == nil && fence == "sh":
			open, language = &step{line: i + 1}, "sh"
		case isFence && open == nil:
			open, language = &step{}, fence
		case isFence:
			if language == "sh" && !left {
				found = append(found, *open)
			} else if (language == "" || language == "text") && after && len(found) > 0 {
				found[len(found)-1].shown = open.shown
			}
			after = language == "sh" && !left
			open, left = nil, false
		case open != nil && language == "sh":
			open.commands += line + "\n"
		case open != nil:
			open.shown = append(open.shown, line)
		case strings.TrimSpace(line) != "":
			after, left = false, strings.HasPrefix(line, notRun) // the next block is about something else
		}
	}
	return found
}

// reading is how a page of docs is read.
type reading struct {
	page string
	// replaced has the texts of the page that are others here.
	replaced map[string]string
	// first runs before the page. before runs ahead of each step.
	first, before string
	// unlike matches steps in another state than the page tells of: they must succeed, and their lines are not compared.
	unlike string
}

// run runs the steps of a page.
func run(t *testing.T, r reading) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + r.page)
	if err != nil {
		t.Fatal(err)
	}
	for old := range r.replaced {
		if !strings.Contains(string(text)+r.first, old) {
			t.Fatalf("docs/%s does not name %s", r.page, old)
		}
	}
	ports := make(map[string]string)
	here := func(text string) string {
		for old, now := range r.replaced {
			text = strings.ReplaceAll(text, old, now)
		}
		return freePorts(t, text, ports)
	}
	shell := start(t)
	shell.step(t, step{commands: here(r.first)})
	writeExamples(t, here(string(text)))
	before := here(r.before)
	all := steps(here(string(text)))
	if len(all) == 0 || !strings.Contains(string(text), runHere) {
		t.Errorf("docs/%s has %d steps, want one or more, and the line %s", r.page, len(all), runHere)
	}
	for _, s := range all {
		if r.unlike != "" && regexp.MustCompile(r.unlike).MatchString(s.commands) {
			s.shown = nil
		}
		s.commands = before + "\n" + s.commands
		shell.step(t, s)
	}
}

// freePorts replaces each address of 127.0.0.1 in a text by the one in ports, or by one with a free port, which it adds.
func freePorts(t *testing.T, text string, ports map[string]string) string {
	t.Helper()
	return regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllStringFunc(text, func(address string) string {
		if ports[address] == "" {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ports[address] = l.Addr().String()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		return ports[address]
	})
}

// terminal is a bash that takes one block after the other.
type terminal struct {
	in    io.Writer
	lines chan string
}

// start starts a bash until the end of the test. What it has started ends with it.
func start(t *testing.T) *terminal {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "bash", "--noprofile", "--norc")
	cmd.Dir = "../.."
	cmd.Env = environment(t)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = to, to
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = to.Close()
	s := &terminal{in: in, lines: make(chan string, 4096)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			select {
			case s.lines <- lines.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait()
		_ = out.Close()
		<-done
	})
	if _, err := fmt.Fprintln(in, "trap 'failed=$?' ERR"); err != nil {
		t.Fatal(err)
	}
	return s
}

// environment is that of a new user: the settings of the test are none of the page's.
func environment(t *testing.T) []string {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{"HOME=" + t.TempDir(), "COLUMNS=100", "PATH=" + bin + ":" + os.Getenv("PATH")}
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); !strings.HasPrefix(name, "BLOCKYARD_") && !slices.Contains([]string{"HOME", "COLUMNS", "PATH"}, name) {
			environ = append(environ, e)
		}
	}
	return environ
}

// step runs a block until it has shown what it must. Commands that start or end processes or requests run once.
func (s *terminal) step(t *testing.T, b step) {
	t.Helper()
	once := regexp.MustCompile(`(?m)&$|^kill |X-Request-Id`).MatchString(b.commands)
	seen, status := s.block(t, b.commands)
	if status != "0" && len(b.shown) == 0 {
		t.Errorf("line %d: %s\nstatus %s\n%s", b.line, b.commands, status, strings.Join(seen, "\n"))
	}
	for _, line := range seen {
		if strings.HasPrefix(line, `{"error"`) && len(b.shown) == 0 || strings.HasPrefix(line, "bash: ") {
			t.Errorf("line %d: %s\n%s", b.line, b.commands, line)
		}
	}
	var missing []string
	err := cluster.Until(t.Context(), patience, pause, func() (bool, error) {
		missing = lacking(b.shown, seen)
		switch {
		case len(missing) == 0:
			return true, nil
		case once:
			seen = append(seen, s.more()...)
		default:
			seen, _ = s.block(t, b.commands)
		}
		return false, nil
	})
	if err != nil {
		t.Fatalf("line %d: %v\n%s\nlines that were not seen:\n%s\noutput:\n%s", b.line, err, b.commands, strings.Join(missing, "\n"), strings.Join(seen, "\n"))
	}
}

// block runs commands and returns the lines that they have shown, and the status of the last one that failed, else 0.
func (s *terminal) block(t *testing.T, commands string) (seen []string, status string) {
	t.Helper()
	if _, err := fmt.Fprintf(s.in, "failed=0\n%s\necho; echo %s $failed\n", commands, end); err != nil {
		t.Fatal(err)
	}
	limit := time.After(patience)
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				t.Fatalf("the shell has ended:\n%s", strings.Join(seen, "\n"))
			}
			if status, ok := strings.CutPrefix(line, end+" "); ok {
				return seen, status
			}
			seen = append(seen, line)
		case <-limit:
			t.Fatalf("%s\nhas not ended after %v:\n%s", commands, patience, strings.Join(seen, "\n"))
		}
	}
}

// more returns the lines that processes have shown since.
func (s *terminal) more() (seen []string) {
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				return seen
			}
			seen = append(seen, line)
		default:
			return seen
		}
	}
}

// lacking returns the lines of a document that nothing of what was seen matches.
func lacking(shown, seen []string) (missing []string) {
	has := make([]string, 0, len(seen))
	for _, line := range seen {
		has = append(has, plain(line))
	}
lines:
	for _, line := range shown {
		want := strings.Split(plain(line), "…")
		for i := range want {
			want[i] = regexp.QuoteMeta(want[i])
		}
		match := regexp.MustCompile("^" + strings.Join(want, ".*") + "$")
		for _, h := range has {
			if match.MatchString(h) {
				continue lines
			}
		}
		missing = append(missing, line)
	}
	return missing
}

// plain makes lines comparable: without fractions, identifiers and numbers of more than two digits, and with one space
// where there are several.
func plain(line string) string {
	line = regexp.MustCompile(`\b[0-9a-f]{16,}\b|\d+(?:[.,]\d+)+|\d{3,}`).ReplaceAllString(line, "N")
	return strings.Join(strings.Fields(line), " ")
}

func TestLacking(t *testing.T) {
	seen := []string{"worker 17/0   exact 1,234", `{"a":0.5}`, "  where   x"}
	for shown, want := range map[string]int{
		"worker 17/0 exact 777": 0, "worker 17/0 degraded 777": 1, "worker 1/0 exact 777": 1, `{"a":…}`: 0, `{"b":…}`: 1, "where x": 0, "": 1, "…": 0, "where": 1,
	} {
		if got := lacking([]string{shown}, seen); len(got) != want {
			t.Errorf("%q: %d lines are missing, want %d", shown, len(got), want)
		}
	}
}

func TestSteps(t *testing.T) {
	got := steps("# x\n```sh\na\n```\n\n```\nb\nc\n```\n```json\n{}\n```\n<!-- not run: needs x -->\n\n```sh\nx\n```\n```\ny\n```\n```sh\nd\n```\ntext\n```\ne\n```\n")
	want := []step{{2, "a\n", []string{"b", "c"}}, {21, "d\n", nil}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestBlockTellsFailures(t *testing.T) {
	shell := start(t)
	for commands, want := range map[string]string{
		"true": "0", "false": "1", "(exit 7)\ntrue": "7", "X=$(false)": "1", "false | true": "0", "until ! false; do :; done": "0", "false &": "0",
	} {
		if _, status := shell.block(t, commands); status != want {
			t.Errorf("%s: status %s, want %s", commands, status, want)
		}
	}
}
