package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

// minDNSEvery and maxDNSEvery bound DNS.Every.
const minDNSEvery, maxDNSEvery = 100 * time.Millisecond, time.Hour

// DNS finds the servers behind a name: one for each of its addresses.
type DNS struct {
	// Every is how often the name is resolved.
	Every time.Duration
	// Lookup returns the addresses of a name; nil means the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Log may be nil.
	Log *zap.Logger

	name, host, port string
	scheme           string
	template         Template
}

// ParseDNS returns the finder of the servers behind a DNS name. text is NAME:PORT[,key=value...],
// with the keys of ParseTemplate. every is how often the name is resolved. With https:// in front of
// the name the servers are asked over TLS; then each server's certificate must have its IP address.
func ParseDNS(text string, every time.Duration) (*DNS, error) {
	name, template, err := ParseTemplate(text)
	if err != nil {
		return nil, err
	}
	if every < minDNSEvery || every > maxDNSEvery {
		return nil, fmt.Errorf("period: %v is not in %v..%v", every, minDNSEvery, maxDNSEvery)
	}
	d := &DNS{Every: every, name: name, scheme: "http://", template: template}
	rest := strings.TrimPrefix(name, d.scheme)
	if after, ok := strings.CutPrefix(name, "https://"); ok {
		d.scheme, rest = "https://", after
	}
	if d.host, d.port, err = net.SplitHostPort(rest); err == nil {
		var port uint64
		if port, err = strconv.ParseUint(d.port, 10, 16); port == 0 || d.host == "" {
			err = errors.New("no name or no port")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%.200q: want NAME:PORT", name)
	}
	return d, nil
}

// Source implements Finder.
func (*DNS) Source() string { return FromDNS }

// Run implements Finder. It resolves the name every d.Every and calls set with the servers at a
// change. The servers go only when the name has no addresses twice in a row, because one such
// answer may be an error of the resolver. Other errors leave the servers as they were.
func (d *DNS) Run(ctx context.Context, set func([]Found)) error {
	log := cmp.Or(d.Log, zap.NewNop())
	log = log.With(zap.String("name", d.name))
	var before []netip.Addr
	// absent counts answers in a row without addresses. failed is the last logged error.
	absent, failed := 0, ""
	for {
		addresses, err := d.lookup(ctx)
		var missing *net.DNSError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &missing) && missing.IsNotFound:
			absent++
			err = nil
			if absent < 2 {
				addresses = before
			}
		case err != nil:
			addresses = before
		default:
			absent = 0
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != failed && text != "" {
			log.Warn("the name of the workers cannot be resolved; the known workers stay", zap.Error(err))
		}
		failed = text
		if absent == 2 {
			log.Warn("the name of the workers has no addresses")
		}
		if !slices.Equal(addresses, before) {
			log.Info("the name of the workers has other addresses", zap.Int("addresses", len(addresses)))
			set(d.found(addresses))
		}
		before = addresses
		if !backoff.Wait(ctx, jitter(d.Every)) {
			return nil
		}
	}
}

// lookup returns the addresses of the name, sorted, each once. With addresses of both kinds it
// returns only those of IPv4.
func (d *DNS) lookup(ctx context.Context) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	find := d.Lookup
	if find == nil {
		find = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	found, err := find(ctx, d.host)
	if err != nil {
		return nil, err
	}
	all := make([]netip.Addr, 0, len(found))
	for _, a := range found[:min(len(found), MaxWorkers)] {
		all = append(all, a.Unmap())
	}
	if slices.ContainsFunc(all, netip.Addr.Is4) {
		// A server with addresses of both kinds is one server.
		all = slices.DeleteFunc(all, netip.Addr.Is6)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}

// found returns the servers at addresses. It leaves out an address of which the template makes no
// valid URL.
func (d *DNS) found(addresses []netip.Addr) []Found {
	all := make([]Found, 0, len(addresses))
	for _, a := range addresses {
		if s, err := d.template.At(d.scheme + net.JoinHostPort(a.String(), d.port)); err == nil {
			all = append(all, Found{Spec: s})
		}
	}
	return all
}
