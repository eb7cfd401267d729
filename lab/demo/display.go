package demo

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// How often progress is shown: in place on a terminal, as a line elsewhere.
const (
	liveInterval  = 200 * time.Millisecond
	plainInterval = 5 * time.Second
)

// display writes progress. Safe for concurrent use.
type display struct {
	out      io.Writer
	terminal bool

	mu sync.Mutex
	// live says that the current line holds progress and is to be overwritten.
	live bool
}

// say writes one line that stays.
func (d *display) say(format string, args ...any) { d.print(fmt.Sprintf(format, args...) + "\n") }

// print writes text that stays.
func (d *display) print(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clearLocked()
	io.WriteString(d.out, text)
}

// update shows a line of progress. On a terminal it replaces the line before.
func (d *display) update(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clearLocked()
	if d.terminal {
		d.live = true
		io.WriteString(d.out, line)
		return
	}
	io.WriteString(d.out, line+"\n")
}

// endLine leaves the cursor on an empty line.
func (d *display) endLine() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clearLocked()
}

// clearLocked wipes a line of progress.
func (d *display) clearLocked() {
	if d.live {
		io.WriteString(d.out, "\r\x1b[K")
		d.live = false
	}
}

// follow shows the progress of a run at intervals until the caller calls stop, which shows it
// once more.
func (d *display) follow(rec *recorder) (stop func()) {
	interval := plainInterval
	if d.terminal {
		interval = liveInterval
	}
	quit, done := make(chan struct{}), make(chan struct{})
	start := time.Now()
	go func() {
		defer close(done)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				d.update(progressLine(rec.progress(), time.Since(start)))
			case <-quit:
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
		d.update(progressLine(rec.progress(), time.Since(start)))
		d.keep()
	}
}

// keep ends the line of progress, so that the next output does not replace it.
func (d *display) keep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.live {
		io.WriteString(d.out, "\n")
		d.live = false
	}
}

// progressLine returns one line of fewer than 80 characters, below 100,000 requests and
// 10,000 s: a terminal that wraps a line cannot show it in place.
func progressLine(p progress, elapsed time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%5.1fs %*d/%d", elapsed.Seconds(), len(strconv.Itoa(p.total)), p.finished, p.total)
	if sum := p.served.sum(); sum > 0 {
		fmt.Fprintf(&b, "  device %2d%% host %2d%% disk %2d%% recomputed %2d%%",
			percent(p.served.Device, sum), percent(p.served.Host, sum), percent(p.served.Disk, sum), percent(p.served.Recomputed, sum))
	}
	if p.failed > 0 {
		fmt.Fprintf(&b, "  %d failed", p.failed)
	}
	return b.String()
}

func percent(part, whole uint64) int { return int((100*part + whole/2) / whole) }

// Widths of the report's columns: three runs fit into 80 characters.
const (
	labelWidth  = 23
	columnWidth = 19
)

// renderReport returns the report for people: a row for each figure, a column for
// each run, the verdict at the end.
func renderReport(r *Report, color bool) string {
	runs := []*RunReport{&r.RunReport}
	titles, routed, tiers := []string{"ours"}, []string{"routed by cache"}, []string{"all tiers"}
	if r.RoundRobin != nil {
		runs, titles = append(runs, r.RoundRobin), append(titles, "round-robin")
		routed, tiers = append(routed, "routed in turn"), append(tiers, "all tiers")
	}
	if r.NoOffload != nil {
		runs, titles = append(runs, r.NoOffload), append(titles, "no offload")
		routed, tiers = append(routed, "routed by cache"), append(tiers, "device only")
	}
	t := table{color: color, columns: len(runs)}
	t.text("")
	t.heading("", titles)
	t.heading("", routed)
	t.heading("", tiers)
	t.rule()
	t.section(runs, "", []row{
		{"requests", func(r *RunReport) string { return grouped(uint64(r.Requests)) }, ""},
		{"input tokens", func(r *RunReport) string { return grouped(r.InputTokens) }, ""},
		{"  from device", share(func(s *Served) uint64 { return s.Device }), green},
		{"  from host", share(func(s *Served) uint64 { return s.Host }), cyan},
		{"  from disk", share(func(s *Served) uint64 { return s.Disk }), blue},
		{"  recomputed", share(func(s *Served) uint64 { return s.Recomputed }), yellow},
	})
	t.section(runs, "time to first token (simulated)", []row{
		{"  mean", func(r *RunReport) string { return fixed(r.TTFT.Mean, 1, "ms") }, ""},
		{"  p50", func(r *RunReport) string { return fixed(r.TTFT.P50, 1, "ms") }, ""},
		{"  p99", func(r *RunReport) string { return fixed(r.TTFT.P99, 1, "ms") }, ""},
	})
	t.section(runs, "router's answer", []row{
		{"  p50", func(r *RunReport) string { return fixed(r.Routing.P50, 0, "µs") }, ""},
		{"  p99", func(r *RunReport) string { return fixed(r.Routing.P99, 0, "µs") }, ""},
	})
	t.section(runs, "checked", []row{
		{"  blocks verified", func(r *RunReport) string { return grouped(r.BlocksVerified) }, ""},
		{"  wrong bytes", func(r *RunReport) string { return grouped(r.WrongBytes) }, ""},
		{"  events in", func(r *RunReport) string { return grouped(r.Events.In) }, ""},
		{"  events out", func(r *RunReport) string { return grouped(r.Events.Out) }, ""},
		{"  frames left out", func(r *RunReport) string { return grouped(r.FramesDropped) }, ""},
		{"  gaps found / repaired", func(r *RunReport) string { return fmt.Sprintf("%d / %d", r.Events.Gaps, r.Events.Repaired) }, ""},
		{"  residencies compared", func(r *RunReport) string { return grouped(uint64(r.Compared)) }, ""},
		{"  diverged", func(r *RunReport) string { return grouped(uint64(r.Diverged)) }, ""},
	})
	t.credit(runs)
	t.rule()
	for _, note := range r.Notes {
		t.text(t.styled("NOTE", "1;33") + "    " + note)
	}
	if r.Passed {
		t.verdict("PASSED", green, "every byte, event and residency checked out")
	} else {
		t.verdict("FAILED", "31", fmt.Sprintf("%d reasons follow", len(r.Reasons)))
	}
	return t.b.String()
}

// renderChecks returns the self-test's verdict for people.
func renderChecks(checks []check, color bool) string {
	t := table{color: color}
	failed := 0
	for _, c := range checks {
		word := t.styled("ok", green)
		if !c.ok() {
			word = t.styled("FAILED", "1;31")
			failed++
		}
		t.text("  " + pad(c.what, 61) + padLeft(grouped(c.got), 8) + "  " + word)
	}
	if failed == 0 {
		t.verdict("PASSED", green, "flipped bytes are found in host memory and refused from disk")
	} else {
		t.verdict("FAILED", "31", fmt.Sprintf("%d of %d checks", failed, len(checks)))
	}
	return t.b.String()
}

// row is one figure of every run. style is the colour of its label, empty for none.
type row struct {
	label string
	value func(*RunReport) string
	style string
}

// Colours of where tokens came from: the cheaper, the greener.
const (
	green  = "32"
	cyan   = "36"
	blue   = "34"
	yellow = "33"
)

// share returns a function for a row of the table: the tokens that of selects, and their
// percentage of all input tokens.
func share(of func(*Served) uint64) func(*RunReport) string {
	return func(r *RunReport) string {
		n := of(&r.Served)
		if r.InputTokens == 0 {
			return grouped(n)
		}
		return fmt.Sprintf("%s %5.1f %%", grouped(n), 100*float64(n)/float64(r.InputTokens))
	}
}

// table builds aligned lines.
type table struct {
	b       strings.Builder
	color   bool
	columns int
}

func (t *table) text(s string) { t.b.WriteString(strings.TrimRight(s, " ") + "\n") }

// styled returns s in a colour or weight, where colours are wanted.
func (t *table) styled(s, code string) string {
	if !t.color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (t *table) heading(label string, cells []string) {
	line := pad(label, labelWidth)
	for _, c := range cells {
		line += padLeft(c, columnWidth)
	}
	t.text(t.styled(line, "1"))
}

func (t *table) rule() { t.text(strings.Repeat("─", labelWidth+t.columns*columnWidth)) }

// section writes a title, unless it is empty, and a line for each row with a column for each run.
func (t *table) section(runs []*RunReport, title string, rows []row) {
	if title != "" {
		t.text(t.styled(title, "1"))
	}
	for _, r := range rows {
		line := pad(r.label, labelWidth)
		if r.style != "" {
			line = t.styled(line, r.style)
		}
		for _, run := range runs {
			line += padLeft(r.value(run), columnWidth)
		}
		t.text(line)
	}
}

func (t *table) verdict(word, code, rest string) { t.text(t.styled(word, "1;"+code) + "  " + rest) }

func pad(s string, width int) string { return s + strings.Repeat(" ", max(0, width-runes(s))) }

func padLeft(s string, width int) string { return strings.Repeat(" ", max(0, width-runes(s))) + s }

func runes(s string) int { return len([]rune(s)) }

// grouped returns n with a comma between thousands.
func grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// fixed returns v with that many decimals, its digits in groups of three, and its unit.
func fixed(v float64, decimals int, unit string) string {
	whole, fraction, found := strings.Cut(strconv.FormatFloat(v, 'f', decimals, 64), ".")
	n, err := strconv.ParseUint(whole, 10, 64)
	if err != nil {
		return whole + " " + unit
	}
	s := grouped(n)
	if found {
		s += "." + fraction
	}
	return s + " " + unit
}

// credit adds the comparison of the router's credit with the engines, if there was one.
func (t *table) credit(runs []*RunReport) {
	if runs[0].CreditCompared == 0 {
		return
	}
	t.section(runs, "router's credit", []row{
		{"  prompts, engines", func(r *RunReport) string { return grouped(uint64(r.CreditCompared)) }, ""},
		{"  blocks found", func(r *RunReport) string { return grouped(uint64(r.CreditBlocks)) }, ""},
		{"  at the agent only", func(r *RunReport) string { return grouped(uint64(r.CreditStored)) }, ""},
		{"  by full attention", func(r *RunReport) string { return grouped(uint64(r.CreditWithoutWindow)) }, ""},
		{"  kills in between", func(r *RunReport) string { return grouped(uint64(r.Kills)) }, ""},
		{"  prompts served", func(r *RunReport) string { return grouped(uint64(r.Promises)) }, ""},
		{"  their blocks", func(r *RunReport) string { return grouped(uint64(r.PromisedBlocks)) }, ""},
		{"  diverged", func(r *RunReport) string { return grouped(uint64(r.CreditDiverged)) }, ""},
	})
}
