package kubernetes

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/blockyard-ai/blockyard/router/workers"
)

// endpointSlice is what is read of an EndpointSlice of discovery.k8s.io/v1.
type endpointSlice struct {
	Metadata struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	// AddressType is "IPv4", "IPv6" or "FQDN".
	AddressType string     `json:"addressType"`
	Endpoints   []endpoint `json:"endpoints"`
	Ports       []port     `json:"ports"`
}

// endpoint is one endpoint of a slice. A condition that is absent is unknown.
type endpoint struct {
	Addresses  []string `json:"addresses"`
	Conditions struct {
		Ready       *bool `json:"ready"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
}

// leaving reports whether the endpoint gets no new requests. Unknown readiness counts as
// ready, as the API demands.
func (e *endpoint) leaving() bool {
	ready, terminating := e.Conditions.Ready, e.Conditions.Terminating
	return ready != nil && !*ready || terminating != nil && *terminating
}

// port is one port of a slice.
type port struct {
	Name        *string `json:"name"`
	Port        *uint32 `json:"port"`
	Protocol    *string `json:"protocol"`
	AppProtocol *string `json:"appProtocol"`
}

// families are the address types in the order of preference.
var families = []string{"IPv4", "IPv6", "FQDN"}

// servers returns the servers of all slices of a Service, each once, ordered by URL. It uses one
// address family, the first of families with endpoints, because a server with two families is in
// two slices. The error names the first slice or endpoint that makes no server; found lacks it.
func (f *Finder) servers(all map[string]*endpointSlice) (found []workers.Found, err error) {
	family := ""
	for _, want := range families {
		for _, s := range all {
			if family == "" && s.AddressType == want && len(s.Endpoints) > 0 {
				family = want
			}
		}
	}
	byURL := make(map[string]int)
	for _, name := range sortedNames(all) {
		s := all[name]
		if s.AddressType != family || len(s.Endpoints) == 0 {
			continue
		}
		scheme, number, portErr := f.portOf(s)
		if portErr != nil {
			err = cmp.Or(err, fmt.Errorf("endpoint slice %s: %w", name, portErr))
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if len(e.Addresses) == 0 {
				continue
			}
			// The addresses of one endpoint are interchangeable; the API tells to use the first.
			spec, specErr := f.template.At(scheme + net.JoinHostPort(e.Addresses[0], strconv.FormatUint(uint64(number), 10)))
			if specErr != nil {
				err = cmp.Or(err, fmt.Errorf("endpoint slice %s: %w", name, specErr))
				continue
			}
			at, known := byURL[spec.URL]
			if !known {
				byURL[spec.URL] = len(found)
				found = append(found, workers.Found{Spec: spec, Leaving: e.leaving()})
			} else if !e.leaving() {
				// Both slices have an endpoint while it moves between them.
				found[at].Leaving = false
			}
		}
	}
	slices.SortFunc(found, func(a, b workers.Found) int { return cmp.Compare(a.URL, b.URL) })
	return found, err
}

// sortedNames returns the names of all slices in order, so that the first error is always the same.
func sortedNames(all map[string]*endpointSlice) []string {
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// portOf returns the port of a slice that takes requests, and the scheme, "http://" or
// "https://". The flag may give the number or the name of the port. Else the only port counts, or
// among several the port "http".
func (f *Finder) portOf(s *endpointSlice) (scheme string, number uint32, err error) {
	if f.portNumber != 0 {
		return "http://", f.portNumber, nil
	}
	want := f.portName
	if want == "" && len(s.Ports) > 1 {
		want = "http"
	}
	for _, p := range s.Ports {
		name := ""
		if p.Name != nil {
			name = *p.Name
		}
		if p.Port == nil || *p.Port == 0 || *p.Port > 65535 || p.Protocol != nil && *p.Protocol != "TCP" || want != "" && name != want {
			continue
		}
		scheme = "http://"
		if p.AppProtocol != nil && *p.AppProtocol == "https" {
			scheme = "https://"
		}
		return scheme, *p.Port, nil
	}
	if want == "" {
		return "", 0, fmt.Errorf("no TCP port; name one with NAMESPACE/SERVICE:PORT")
	}
	return "", 0, fmt.Errorf("no TCP port %q; name one with NAMESPACE/SERVICE:PORT", want)
}
