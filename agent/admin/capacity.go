package admin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// resizeRequest is the body of POST /v1/resize.
type resizeRequest struct {
	Tier    string  `json:"tier"`
	Bytes   uint64  `json:"bytes"`
	Timeout float64 `json:"timeout_seconds"`
	DryRun  bool    `json:"dry_run"`
}

func (r resizeRequest) about() string {
	return fmt.Sprintf("tier %.16q to %v", r.Tier, bytesize.Size(r.Bytes)) + aboutDryRun(r.DryRun)
}

// resizeAnswer has the size of a tier before and after, and the bytes that extents take. Settled is false
// while extents beyond the size have blocks in use: the agent goes on giving them back.
type resizeAnswer struct {
	Tier    string `json:"tier"`
	Before  uint64 `json:"bytes_before"`
	Bytes   uint64 `json:"bytes"`
	Used    uint64 `json:"used_bytes"`
	Settled bool   `json:"settled"`
	DryRun  bool   `json:"dry_run,omitempty"`
}

// resize changes the size of a tier, and waits until the tier is within it. A dry run changes nothing
// and does not wait.
func (c *control) resize(ctx context.Context, in resizeRequest) (resizeAnswer, error) {
	tier, err := controlTier(in.Tier)
	if err != nil {
		return resizeAnswer{}, err
	}
	if err := checkTimeout(in.Timeout); err != nil {
		return resizeAnswer{}, err
	}
	before, err := c.pools.Manager().Size(tier)
	if err != nil {
		return resizeAnswer{}, err
	}
	settled, err := c.pools.Resize(tier, in.Bytes, in.DryRun)
	if err != nil {
		return resizeAnswer{}, err
	}
	out := resizeAnswer{Tier: in.Tier, Before: before.Bytes, Bytes: in.Bytes, Used: before.Used, DryRun: in.DryRun}
	if in.DryRun {
		out.Settled = before.Used <= in.Bytes
		return out, nil
	}
	awaitSettled(ctx, settled, in.Timeout)
	now, err := c.pools.Manager().Size(tier)
	out.Used, out.Settled = now.Used, now.Used <= now.Bytes
	return out, err
}

// checkTimeout checks the time to wait of a request.
func checkTimeout(seconds float64) error {
	if seconds < minFlush.Seconds() || seconds > maxFlush.Seconds() {
		return badRequest("timeout_seconds %v: want %v to %.0f", seconds, minFlush.Seconds(), maxFlush.Seconds())
	}
	return nil
}

// awaitSettled waits until settled is closed, for seconds at most.
func awaitSettled(ctx context.Context, settled <-chan struct{}, seconds float64) {
	timeout := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timeout.Stop()
	select {
	case <-settled:
	case <-timeout.C:
	case <-ctx.Done():
	}
}

// sizeAnswer is the size of a tier and the bytes of it that extents take.
type sizeAnswer struct {
	Bytes uint64 `json:"bytes"`
	Used  uint64 `json:"used_bytes"`
}

// quotaAnswer is the body of GET /v1/quota. Tiers has those with a size in bytes.
type quotaAnswer struct {
	Tiers  map[string]sizeAnswer `json:"tiers"`
	Quotas []blockmgr.Quota      `json:"quotas"`
}

func tierNames() map[string]kv.Tier {
	return map[string]kv.Tier{"host": kv.TierHost, "disk": kv.TierDisk}
}

// serveQuota serves GET /v1/quota.
func (c *control) serveQuota(w http.ResponseWriter, _ *http.Request) {
	m := c.pools.Manager()
	out := quotaAnswer{Tiers: map[string]sizeAnswer{}, Quotas: m.Quotas()}
	for name, tier := range tierNames() {
		if s, err := m.Size(tier); err == nil { // an error says that the tier has no size in bytes
			out.Tiers[name] = sizeAnswer(s)
		}
	}
	writeJSON(w, out)
}

// quotaRequest is the body of POST /v1/quota: the limit of a model, of a tenant, or of a tenant in a model, in a
// tier; 0 for none.
type quotaRequest struct {
	Model   string  `json:"model"`
	Tenant  string  `json:"tenant"`
	Tier    string  `json:"tier"`
	Bytes   uint64  `json:"bytes"`
	Timeout float64 `json:"timeout_seconds"`
	DryRun  bool    `json:"dry_run"`
}

func (r quotaRequest) about() string {
	whose := fmt.Sprintf("tenant %.80q, model %.80q", r.Tenant, r.Model)
	switch r.name().Of {
	case blockmgr.OfTenant:
		whose = fmt.Sprintf("tenant %.80q", r.Tenant)
	case blockmgr.OfModel:
		whose = fmt.Sprintf("model %.80q", r.Model)
	}
	return fmt.Sprintf("%s, tier %.16q to %v", whose, r.Tier, bytesize.Size(r.Bytes)) + aboutDryRun(r.DryRun)
}

// quotaSet is the answer to POST /v1/quota. Settled is false while more than the limit is used, because
// blocks beyond it are in use.
type quotaSet struct {
	Before  uint64 `json:"bytes_before"`
	Bytes   uint64 `json:"bytes"`
	Used    uint64 `json:"used_bytes"`
	Settled bool   `json:"settled"`
	DryRun  bool   `json:"dry_run,omitempty"`
}

// name says whose the limit is.
func (r quotaRequest) name() blockmgr.QuotaName {
	switch {
	case r.Tenant == "":
		return blockmgr.QuotaName{Of: blockmgr.OfModel, Name: r.Model}
	case r.Model == "":
		return blockmgr.QuotaName{Of: blockmgr.OfTenant, Name: r.Tenant}
	}
	return blockmgr.QuotaName{Of: blockmgr.OfTenantModel, Name: r.Tenant, Model: r.Model}
}

// setQuota changes a limit in a tier, until the agent ends or reads its limits
// file again. It waits until no more is used. A dry run changes nothing.
func (c *control) setQuota(ctx context.Context, in quotaRequest) (quotaSet, error) {
	tier, err := controlTier(in.Tier)
	if err == nil {
		err = checkTimeout(in.Timeout)
	}
	if err != nil {
		return quotaSet{}, err
	}
	if in.Model == "" && in.Tenant == "" {
		return quotaSet{}, badRequest("model and tenant are empty: want one of them or both")
	}
	m := c.pools.Manager()
	name := in.name()
	before, err := m.CheckQuota(name, tier, in.Bytes)
	if err != nil {
		return quotaSet{}, err
	}
	if !in.DryRun {
		settled, err := m.SetQuota(name, tier, in.Bytes)
		if err != nil {
			return quotaSet{}, err
		}
		awaitSettled(ctx, settled, in.Timeout)
	}
	used := m.QuotaOf(name, tier).Used
	return quotaSet{before, in.Bytes, used, in.Bytes == 0 || used <= in.Bytes, in.DryRun}, nil
}
