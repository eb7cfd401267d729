package join

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	fleetName = "fleet"
	prefix    = "blockyard_router_"
	// processorTime is the metric of the router's processor seconds.
	processorTime = "process_cpu_seconds_total"
	lookEvery     = 100 * time.Millisecond
	sayEvery      = 5 * time.Second
	idleTime      = 3 * time.Second
)

// Run starts a fleet, then a router behind a throttled link, and measures the router's join. It writes
// progress and figures to o.Out. The error says that the join did not end, or that it was cut.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	o = o.withDefaults()
	dirs, err := cluster.MakeDirs("blockyard-join", o.Dir, o.Dir, 0)
	if err != nil {
		return err
	}
	c := cluster.New(cluster.Options{Programs: o.Programs, NATSServer: o.NATSServer, Dirs: dirs, JetStream: o.Restart})
	defer func() {
		c.Close(0)
		keep := ctx.Err() == nil && err != nil
		if keep {
			fmt.Fprintf(o.Out, "logs: %s\n", dirs.Logs)
		}
		err = errors.Join(err, dirs.Remove(keep))
	}()
	if _, err = c.StartNATS(ctx); err != nil {
		return err
	}
	f, err := o.startFleet(ctx, c)
	if err != nil {
		return err
	}
	k, err := openLink(c.NATSAddress(), o.LinkBytes)
	if err != nil {
		return err
	}
	defer k.close()
	c.RouteThrough(k.address())
	r, err := o.join(ctx, c, k)
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	if err = r.report(&o); err != nil || !o.Restart {
		return err
	}
	if err = o.restart(ctx, c, k, f, r.router); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	return nil
}

// startFleet starts the process with all publishers, and waits until each has announced itself.
func (o *Options) startFleet(ctx context.Context, c *cluster.Cluster) (*cluster.Process, error) {
	p, err := c.StartHelper(ctx, fleetName, "bench", "join-fleet", "--cluster="+c.Name(),
		"--agents="+strconv.Itoa(o.Agents), "--engines="+strconv.Itoa(o.Engines), "--blocks="+strconv.Itoa(o.Blocks))
	if err != nil {
		return nil, err
	}
	starting, cancel := context.WithTimeoutCause(ctx, o.Patience, cluster.ErrTooLong)
	defer cancel()
	var all announced
	if err := p.Next(starting, &all); err != nil {
		return nil, err
	}
	resident, err := p.PeakRSS()
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Out, "fleet: %d agents with %d engines each, %d publishers of %d blocks; %d MiB\n",
		o.Agents, o.Engines, all.Publishers, o.Blocks, resident>>20)
	return p, nil
}

func (o *Options) publishers() int  { return o.Agents * (o.Engines + 1) }
func (o *Options) memberships() int { return o.publishers() * o.Blocks }

// result has the figures of a join.
type result struct {
	router                     *cluster.Router
	took, link                 time.Duration
	bytes, peak                uint64
	reconnects                 uint64
	dropped, cut, failed, asks float64
	idle                       uint64 // bytes a second over the link after the join: announcements
	indexBytes                 float64
	cpu                        float64 // the router's processor seconds
	metrics                    map[string]float64
}

// cuts counts lost connections, dropped messages and dumps that broke off.
func (r *result) cuts() uint64 { return r.reconnects + uint64(r.dropped) + uint64(r.cut) }

// join starts a router behind the link, waits until it knows every block, and measures the idle link.
func (o *Options) join(ctx context.Context, c *cluster.Cluster, k *link) (*result, error) {
	r, err := o.exact(ctx, c, k, 0)
	if err == nil {
		r.idle, err = k.idle(ctx)
	}
	return r, err
}

// exact starts a router behind the link and waits until it knows every block of publishers that have replaced some
// documents.
func (o *Options) exact(ctx context.Context, c *cluster.Cluster, k *link, replaced int) (*result, error) {
	began, bytes, connections := time.Now(), k.bytes.Load(), k.connections.Load()
	var flags []string
	if o.Restart {
		flags = append(flags, "--durable-kv-events")
	}
	r, err := c.StartRouter(ctx, flags...)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Out, "router: ready after %.1f s\n", time.Since(began).Seconds())
	said := began
	for {
		m, err := read(ctx, r)
		if err != nil {
			return nil, err
		}
		took := time.Since(began)
		known := m[prefix+"feeds_exact"] == float64(o.publishers()) && m[prefix+"index_memberships"] == float64(o.memberships())
		if known && replaced > 0 { // a snapshot has as many blocks, and its publishers were exact
			if known, err = o.caughtUp(ctx, r, replaced); err != nil {
				return nil, err
			}
		}
		if known {
			out := &result{router: r, took: took, bytes: k.bytes.Load() - bytes, reconnects: k.connections.Load() - connections - 1,
				dropped: m[prefix+"transport_dropped_total"], cut: m[prefix+"dumps_cut_total"], failed: m[prefix+"query_failures_total"],
				asks: m[prefix+"queries_total"], indexBytes: m[prefix+"index_bytes"], cpu: m[processorTime], metrics: m}
			out.link = time.Duration(float64(out.bytes) / float64(o.LinkBytes) * float64(time.Second))
			out.peak, err = r.PeakRSS()
			return out, err
		}
		if took > o.Patience {
			return nil, fmt.Errorf("after %s %.0f of %d feeds are exact, with %.0f of %d blocks: %w", o.Patience,
				m[prefix+"feeds_exact"], o.publishers(), m[prefix+"index_memberships"], o.memberships(), cluster.ErrTooLong)
		}
		if time.Since(said) >= sayEvery {
			said = time.Now()
			fmt.Fprintf(o.Out, "%.0f s: %.0f feeds exact, %.0f blocks, %d MiB over the link\n", took.Seconds(),
				m[prefix+"feeds_exact"], m[prefix+"index_memberships"], (k.bytes.Load()-bytes)>>20)
		}
		if err := cluster.Wait(ctx, lookEvery); err != nil {
			return nil, err
		}
	}
}

// caughtUp reports whether a router has applied every event of publishers that have replaced some documents.
func (o *Options) caughtUp(ctx context.Context, r *cluster.Router, replaced int) (bool, error) {
	var feeds []cluster.RouterFeed
	if err := r.Get(ctx, "/v1/feeds", &feeds); err != nil {
		return false, err
	}
	w := owner{blocks: o.Blocks, first: uint64(replaced)}
	for _, f := range feeds {
		if f.Health != cluster.HealthExact || f.Cursor != w.last() || f.Announced != w.last() {
			return false, nil
		}
	}
	return len(feeds) == o.publishers(), nil
}

// idle returns the bytes a second that the link carries while nothing changes.
func (k *link) idle(ctx context.Context) (uint64, error) {
	before, began := k.bytes.Load(), time.Now()
	if err := cluster.Wait(ctx, idleTime); err != nil {
		return 0, err
	}
	return uint64(float64(k.bytes.Load()-before) / time.Since(began).Seconds()), nil
}

// read returns the router's metrics without labels.
func read(ctx context.Context, r *cluster.Router) (map[string]float64, error) {
	all := make(map[string]float64)
	err := r.Do(ctx, cluster.Request{Method: http.MethodGet, Path: "/metrics"}, func(answer io.Reader) error {
		lines := bufio.NewScanner(answer)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), " ")
			if name != processorTime && !strings.HasPrefix(name, prefix) || strings.Contains(name, "{") {
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return fmt.Errorf("metric %s: %w", name, err)
			}
			all[name] = n
		}
		return lines.Err()
	})
	return all, err
}

// report prints the figures. The error says that the join was cut.
func (r *result) report(o *Options) error {
	fmt.Fprintf(o.Out, "%.0f questions, %.0f failed; lost connections %d, dropped messages %.0f, dumps cut %.0f; index %.0f MiB; announcements %d KiB/s; router %.1f s of processor time\n",
		r.asks, r.failed, r.reconnects, r.dropped, r.cut, r.indexBytes/(1<<20), r.idle>>10, r.cpu)
	_, err := fmt.Fprintf(o.Out, "bench-join: agents=%d engines=%d memberships=%d link_mib_s=%d bytes=%d join_s=%.1f link_s=%.1f ratio=%.2f peak_mib=%d cuts=%d\n",
		o.Agents, o.Engines, o.memberships(), o.LinkBytes>>20, r.bytes, r.took.Seconds(), r.link.Seconds(),
		r.took.Seconds()/r.link.Seconds(), r.peak>>20, r.cuts())
	if cuts := r.cuts(); cuts > 0 {
		err = errors.Join(err, fmt.Errorf("join: %d cuts, want none", cuts))
	}
	return err
}
