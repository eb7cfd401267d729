package top

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/blockyard-ai/blockyard/internal/command/inspect"
)

// view is a choice of what the screen shows.
type view int

// The views, in the order of the keys.
const (
	viewAll view = iota
	viewTiers
	viewWorkers
	viewQueues
	viewEvents
	numViews
)

// String returns the name of the view.
func (v view) String() string { return []string{"all", "tiers", "workers", "queues", "events"}[v] }

// line is a line of the screen. Heads are shown in bold, problems in red.
type line struct {
	text          string
	head, problem bool
}

// render returns the lines of a view: the summary, and the sections of the view. before is the sample
// that rates are counted from; nil shows no rates. No line has more than width characters.
func render(v view, before, now *sample, width int) []line {
	if before == nil {
		before = &sample{at: now.at}
	}
	p := &page{before: before, now: now, extra: max(0, width-onceWidth)}
	p.summary(v)
	sections := []func(){p.tiers, p.workers, p.queues, p.events}
	for i, section := range sections {
		if v == viewAll || int(v) == i+1 {
			p.add("")
			section()
		}
	}
	for i := range p.lines {
		p.lines[i].text = clip(p.lines[i].text, width)
	}
	return p.lines
}

// page collects the lines of a screen.
type page struct {
	before, now *sample
	// extra are the columns beyond 80. Names get them.
	extra int
	lines []line
}

func (p *page) add(format string, args ...any) {
	p.lines = append(p.lines, line{text: fmt.Sprintf(format, args...)})
}

func (p *page) head(format string, args ...any) {
	p.lines = append(p.lines, line{text: fmt.Sprintf(format, args...), head: true})
}

// seconds is the time between the two samples.
func (p *page) seconds() float64 { return p.now.at.Sub(p.before.at).Seconds() }

// rate returns the change of a counter in a second; NaN without an earlier value, and after a
// restart of the server.
func (p *page) rate(now, before float64, known bool) float64 {
	if s := p.seconds(); known && s > 0 && now >= before {
		return (now - before) / s
	}
	return math.NaN()
}

// summary adds the lines about the whole: the router's decisions, hits and misses, and problems.
func (p *page) summary(v view) {
	r := p.now.router
	address, workers := "none", 0
	if r != nil {
		address, workers = strings.TrimPrefix(r.URL, "http://"), len(r.Workers)
	}
	p.head("blockyard top  %s  router %s  agents %d  workers %d  [%s]", p.now.at.UTC().Format("15:04:05Z"), inspect.Printable(address), len(p.now.agents), workers, v)
	if r != nil {
		p.routing(r, p.before.router)
	}
	for _, text := range p.now.problems {
		p.lines = append(p.lines, line{text: "no answer: " + inspect.Printable(text), problem: true})
	}
}

// routing adds the lines about the router's decisions.
func (p *page) routing(r, before *routerSample) {
	known := before != nil
	if !known {
		before = &routerSample{}
	}
	m, b := r.Metrics, before.Metrics
	change := func(family string) float64 { return p.rate(m.sum(family), b.sum(family), known) }
	hits := ratio(m.sum("blockyard_router_kv_hit_rate_sum")-b.sum("blockyard_router_kv_hit_rate_sum"), m.sum("blockyard_router_kv_hit_rate_count")-b.sum("blockyard_router_kv_hit_rate_count"))
	p.add("routing   %s decisions/s  %.0f active  %.0f waiting  hit rate %s", number(change("blockyard_router_decision_seconds_count")),
		m.sum("blockyard_router_active_requests"), m.sum("blockyard_router_queue_pending_requests"), percent(hits))
	const requests, blocks, differs = "blockyard_router_requests_total", "blockyard_router_hit_blocks_total", "blockyard_frontend_cached_tokens_difference_total"
	p.add("quality   %s", shares(m.by(requests, "quality"), b.by(requests, "quality")))
	p.add("hits      %s blocks/s by tier", p.rates(m.by(blocks, "tier"), b.by(blocks, "tier"), known))
	if less := m.by(differs, "cause", `direction="less"`); len(less) > 0 {
		p.add("misses    %s tokens/s by cause", p.rates(less, b.by(differs, "cause", `direction="less"`), known))
	}
}

// shares returns the parts of what was counted between two moments, of what was ever counted if that
// is nothing.
func shares(now, before map[string]float64) string {
	parts, total := make(map[string]float64), 0.0
	for name, v := range now {
		parts[name] = v - before[name]
		total += parts[name]
	}
	if total <= 0 {
		parts, total = now, 0
		for _, v := range now {
			total += v
		}
	}
	var text []string
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if parts[name] > 0 {
			text = append(text, inspect.Printable(name)+" "+percent(parts[name]/total))
		}
	}
	return cmp.Or(strings.Join(text, "  "), "-")
}

// rates returns the rates of counters by name, the largest first.
func (p *page) rates(now, before map[string]float64, known bool) string {
	names := slices.Sorted(maps.Keys(now))
	rate := func(name string) float64 { return p.rate(now[name], before[name], known) }
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rate(b), rate(a)) })
	var text []string
	for _, name := range names {
		text = append(text, inspect.Printable(name)+" "+number(rate(name)))
	}
	return cmp.Or(strings.Join(text, "  "), "-")
}

// earlier returns the agent and its pool in the sample before; an empty pool when there was none.
func (p *page) earlier(a *agentSample, namespace string) (pool, bool) {
	for _, other := range p.before.agents {
		if other.URL != a.URL {
			continue
		}
		if i := slices.IndexFunc(other.Pools, func(q pool) bool { return q.Namespace == namespace }); i >= 0 {
			return other.Pools[i], true
		}
	}
	return pool{}, false
}

// tiers adds each tier of each pool: how full it is, and what lookups found there.
func (p *page) tiers() {
	model := 14 + p.extra
	p.head("%-10s %-*s %-4s %-12s %5s %8s %5s %7s %7s", "NODE", model, "MODEL", "TIER", "USED", "", "SIZE", "HIT", "HITS/S", "EVICT/S")
	for _, a := range p.now.agents {
		for _, q := range a.Pools {
			was, known := p.earlier(a, q.Namespace)
			asked := float64(q.HostHits+q.DiskHits+q.Misses) - float64(was.HostHits+was.DiskHits+was.Misses)
			for _, t := range []struct {
				name              string
				tier              tier
				hits, evictions   uint64
				hitsWas, evictWas uint64
			}{{"host", q.Host, q.HostHits, q.HostEvictions, was.HostHits, was.HostEvictions}, {"disk", q.Disk, q.DiskHits, q.DiskEvictions, was.DiskHits, was.DiskEvictions}} {
				if t.tier.Capacity == 0 {
					continue
				}
				used := ratio(float64(t.tier.Capacity-t.tier.Free), float64(t.tier.Capacity))
				p.add("%-10s %-*s %-4s %s %5s %8s %5s %7s %7s", fit(a.Node, 10), model, fit(q.Model, model), t.name, bar(used, 12), percent(used),
					size(float64(t.tier.Bytes)), percent(ratio(float64(t.hits)-float64(t.hitsWas), asked)),
					number(p.rate(float64(t.hits), float64(t.hitsWas), known)), number(p.rate(float64(t.evictions), float64(t.evictWas), known)))
			}
		}
	}
}

// workers adds each worker of the router with its load.
func (p *page) workers() {
	if p.now.router == nil {
		return
	}
	model := 12 + p.extra
	p.head("%-12s %-*s %-8s %-10s %4s %5s %5s %8s %5s", "WORKER", model, "MODEL", "QUALITY", "DEVICE", "", "RUN", "WAIT", "TOKENS/S", "AGE")
	for _, w := range p.now.router.Workers {
		name, quality := fmt.Sprintf("%d/%d", w.WorkerID, w.DPRank), w.Quality
		if w.Silent {
			quality = "silent"
		}
		speed := math.NaN()
		if w.Measured.Prefill != nil {
			speed = w.Measured.Prefill.PerSecond
		}
		if w.Load == nil {
			p.add("%-12s %-*s %-8s %-10s %4s %5s %5s %8s %5s", fit(name, 12), model, fit(w.Model, model), fit(quality, 8), "", "-", "-", "-", number(speed), "-")
			continue
		}
		used := ratio(float64(w.Load.Used), float64(w.Load.Total))
		p.add("%-12s %-*s %-8s %s %4s %5d %5d %8s %4.1fs", fit(name, 12), model, fit(w.Model, model), fit(quality, 8), bar(used, 10), percent(used),
			w.Load.Running, w.Load.Waiting, number(speed), w.Load.Age)
	}
}

// queues adds what each agent has in its queues, and what it moves.
func (p *page) queues() {
	node := 12 + p.extra
	p.head("%-*s %8s %6s %6s %6s %9s %9s %9s %7s", node, "NODE", "SESSIONS", "SEAL", "WRITE", "READ", "READ/S", "WRITE/S", "COPY/S", "LOST")
	for _, a := range p.now.agents {
		var seal, write, read int
		sum := func(s *agentSample) (bytesRead, bytesWritten, copied float64) {
			for _, q := range s.Pools {
				bytesRead, bytesWritten = bytesRead+float64(q.BytesRead), bytesWritten+float64(q.BytesWritten)
			}
			for _, c := range s.Connectors {
				copied += float64(c.CopiedBytes)
			}
			return bytesRead, bytesWritten, copied
		}
		for _, q := range a.Pools {
			seal, write, read = seal+q.SealQueue, write+q.WriteQueue, read+q.PromoteQueue
		}
		var readWas, writtenWas, copiedWas float64
		i := slices.IndexFunc(p.before.agents, func(b *agentSample) bool { return b.URL == a.URL })
		if i >= 0 {
			readWas, writtenWas, copiedWas = sum(p.before.agents[i])
		}
		bytesRead, written, copied := sum(a)
		p.add("%-*s %8d %6d %6d %6d %9s %9s %9s %7d", node, fit(a.Node, node), a.Sessions, seal, write, read,
			size(p.rate(bytesRead, readWas, i >= 0)), size(p.rate(written, writtenWas, i >= 0)), size(p.rate(copied, copiedWas, i >= 0)), a.Events.Lost)
	}
}

// events adds each publisher that the router follows, those with a lag or another fault first.
func (p *page) events() {
	if p.now.router == nil {
		return
	}
	feeds := slices.Clone(p.now.router.Feeds)
	lag := func(f feed) uint64 { return f.Announced - min(f.Cursor, f.Announced) }
	exact, most := 0, uint64(0)
	for _, f := range feeds {
		if f.Health == "exact" && f.DigestOK {
			exact++
		}
		most = max(most, lag(f))
	}
	slices.SortStableFunc(feeds, func(a, b feed) int {
		return cmp.Or(cmp.Compare(lag(b), lag(a)), strings.Compare(b.Health, a.Health), strings.Compare(a.Owner, b.Owner))
	})
	owner := 25 + p.extra
	p.head("%-*s %-10s %8s %8s %8s %8s %6s", owner, fmt.Sprintf("OWNER %d/%d exact", exact, len(feeds)), "HEALTH", "LAG", "GAPS", "REPAIRED", "DIVERGED", "DIGEST")
	for _, f := range feeds {
		digest := "ok"
		if !f.DigestOK {
			digest = "differs"
		}
		p.add("%-*s %-10s %8d %8d %8d %8d %6s", owner, fit(f.Owner, owner), fit(f.Health, 10), lag(f), f.Gaps, f.Repaired, f.Divergences, digest)
	}
}

// ratio returns part of whole, NaN of nothing.
func ratio(part, whole float64) float64 {
	if whole <= 0 {
		return math.NaN()
	}
	return part / whole
}

// bar returns a bar of width characters, filled by a share of 0 to 1.
func bar(share float64, width int) string {
	inner := width - 2
	full := 0
	if !math.IsNaN(share) {
		full = max(0, min(inner, int(math.Round(share*float64(inner)))))
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", inner-full) + "]"
}

// percent, number and size write a value in few characters; "-" for NaN.
func percent(share float64) string {
	if math.IsNaN(share) {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*share)
}

func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case v >= 1e6:
		return fmt.Sprintf("%.1fM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.0fk", v/1e3)
	case v >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

func size(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	const step = 1024
	unit := 0
	for ; v >= step && unit < len(units)-1; unit++ {
		v /= step
	}
	return number(math.Round(v*10)/10) + units[unit]
}

// units are those of size.
var units = []string{"B", "KiB", "MiB", "GiB", "TiB"}

// fit returns a name of a server in at most width characters.
func fit(text string, width int) string { return clip(inspect.Printable(text), width) }

// clip returns the first width characters of a text. A ~ stands for more.
func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "~"
}
