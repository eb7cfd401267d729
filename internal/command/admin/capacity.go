package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/command/inspect"
)

// wait is how long a command waits for the agent to end what it began.
type wait struct {
	Wait time.Duration `default:"10s" help:"How long to wait for the end, 1ms to 25s. The agent goes on after that."`
}

// prefetch is "blockyard admin prefetch".
type prefetch struct {
	blocks
	wait
}

// Run reads the blocks into host memory. The error says that some are still on disk alone.
func (p *prefetch) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	body, err := p.body(ctx, &c.Connection)
	if err != nil {
		return err
	}
	body["timeout_seconds"] = p.Wait.Seconds()
	var a struct{ Host, Read, Left int }
	answer, err := c.ask(ctx, defaultAgent, http.MethodPost, "/v1/prefetch", body, &a)
	if err != nil {
		return err
	}
	if err := c.print(stdout, answer, "%d blocks were in host memory, %d were read into it, %d are on disk alone", a.Host, a.Read, a.Left); err != nil {
		return err
	}
	if a.Left > 0 && !c.DryRun {
		return fmt.Errorf("%d blocks are not in host memory: its slots are in use, the disk fails or the time is up", a.Left)
	}
	return nil
}

// resize is "blockyard admin resize".
type resize struct {
	wait
	Tier string        `required:"" enum:"host,disk" help:"Tier to resize: host or disk."`
	Size bytesize.Size `required:"" placeholder:"SIZE" help:"New size, such as 64GiB. The next start of the agent has --host-size and --disk-size again."`
}

// Run changes the size of the tier. The error says that blocks beyond the new size are in use.
func (r *resize) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	body := map[string]any{"tier": r.Tier, "bytes": uint64(r.Size), "timeout_seconds": r.Wait.Seconds(), "dry_run": c.DryRun}
	var a struct {
		Before  uint64 `json:"bytes_before"`
		Bytes   uint64 `json:"bytes"`
		Used    uint64 `json:"used_bytes"`
		Settled bool   `json:"settled"`
	}
	answer, err := c.ask(ctx, defaultAgent, http.MethodPost, "/v1/resize", body, &a)
	if err != nil {
		return err
	}
	if err := c.print(stdout, answer, "the %s tier goes from %v to %v; its extents take %v", r.Tier, bytesize.Size(a.Before), bytesize.Size(a.Bytes), bytesize.Size(a.Used)); err != nil {
		return err
	}
	if !a.Settled && !c.DryRun {
		return fmt.Errorf("%v are still beyond the new size: blocks in use, which the agent gives back when they are not", bytesize.Size(a.Used-a.Bytes))
	}
	return nil
}

// quota is "blockyard admin quota".
type quota struct {
	wait
	Model  string         `placeholder:"NAME" help:"Model whose limit is set. Without --model and --tenant, the limits are shown."`
	Tenant string         `placeholder:"NAME" help:"Tenant whose limit is set, one of --limits-file. With --model: the tenant's limit in that model."`
	Tier   string         `placeholder:"TIER" enum:"host,disk," default:"" help:"Tier of the limit: host or disk."`
	Size   *bytesize.Size `placeholder:"SIZE" help:"Limit, such as 64GiB; 0 for none. It holds until the agent ends or reads --limits-file again."`
}

// Validate checks that a limit is whole. Kong reports its error as one of usage.
func (q *quota) Validate() error {
	given := 0
	for _, is := range []bool{q.Model+q.Tenant != "", q.Tier != "", q.Size != nil} {
		if is {
			given++
		}
	}
	if given != 0 && given != 3 {
		return errors.New("a limit needs --model, --tenant or both, --tier and --size; none of them shows the limits")
	}
	return nil
}

// Run shows the limits, or sets one. The error says that more than the limit is in use.
func (q *quota) Run(ctx context.Context, c *Command, stdout io.Writer) error {
	if q.Size == nil {
		return showQuota(ctx, c, stdout)
	}
	body := map[string]any{"model": q.Model, "tenant": q.Tenant, "tier": q.Tier, "bytes": uint64(*q.Size), "timeout_seconds": q.Wait.Seconds(), "dry_run": c.DryRun}
	var a struct {
		Before  uint64 `json:"bytes_before"`
		Used    uint64 `json:"used_bytes"`
		Settled bool
	}
	answer, err := c.ask(ctx, defaultAgent, http.MethodPost, "/v1/quota", body, &a)
	if err != nil {
		return err
	}
	if err := c.print(stdout, answer, "the %s limit goes from %s to %s; %v are used", q.Tier, limitText(a.Before), limitText(uint64(*q.Size)), bytesize.Size(a.Used)); err != nil {
		return err
	}
	if !a.Settled && !c.DryRun {
		return errors.New("more than the limit is used by blocks in use, which the agent gives back when they are not")
	}
	return nil
}

// limitText returns a limit as people read it.
func limitText(bytes uint64) string {
	if bytes == 0 {
		return "none"
	}
	return bytesize.Size(bytes).String()
}

// showQuota prints the sizes of the tiers, and what models and tenants may have and have of them.
func showQuota(ctx context.Context, c *Command, stdout io.Writer) error {
	type used struct {
		Bytes uint64 `json:"bytes"`
		Limit uint64 `json:"limit_bytes"`
		Used  uint64 `json:"used_bytes"`
	}
	var q struct {
		Tiers  map[string]used
		Quotas []struct {
			Of, Name, Model string
			Share           uint64
			Host, Disk      used
			TTL             float64 `json:"ttl_seconds"`
		}
	}
	answer, err := c.ask(ctx, defaultAgent, http.MethodGet, "/v1/quota", nil, &q)
	if err != nil {
		return err
	}
	if c.JSON {
		return c.print(stdout, answer, "")
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "WHOSE\tNAME\tSHARE\tHOST USED\tHOST LIMIT\tDISK USED\tDISK LIMIT\tBLOCKS LIVE")
	row := func(of, name string, share uint64, host, disk used, ttl string) {
		fmt.Fprintf(w, "%s\t%s\t%d\t%v\t%s\t%v\t%s\t%s\n", of, inspect.Printable(name), share,
			bytesize.Size(host.Used), limitText(host.Limit), bytesize.Size(disk.Used), limitText(disk.Limit), ttl)
	}
	host, disk := q.Tiers["host"], q.Tiers["disk"]
	row("node", "all", 0, used{Limit: host.Bytes, Used: host.Used}, used{Limit: disk.Bytes, Used: disk.Used}, "")
	for _, of := range q.Quotas {
		ttl := ""
		if of.TTL > 0 {
			ttl = time.Duration(of.TTL * float64(time.Second)).String()
		}
		name := of.Name
		if of.Model != "" {
			name += " in " + of.Model
		}
		row(of.Of, name, of.Share, of.Host, of.Disk, ttl)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = io.WriteString(stdout, b.String())
	return err
}
