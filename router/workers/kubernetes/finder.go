package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/router/workers"
)

const (
	// maxSlices bounds the slices of a Service, pageSlices the ones of one answer.
	maxSlices  = 4096
	pageSlices = 250
	// maxPage bounds one answer to a list, maxEvent one event of a watch, in bytes. A slice
	// has at most 1,000 endpoints.
	maxPage  = 64 << 20
	maxEvent = 8 << 20
	// listTimeout bounds one answer to a list.
	listTimeout = 30 * time.Second
	// watchFor is how long the API server keeps a watch, watchTimeout when the router gives
	// up waiting for its end.
	watchFor     = 4 * time.Minute
	watchTimeout = watchFor + 30*time.Second
	// firstRetry and lastRetry bound the pauses after failures, rewatch the one after a watch
	// that ended well.
	firstRetry, lastRetry = 500 * time.Millisecond, 30 * time.Second
	rewatch               = 100 * time.Millisecond
)

// Finder finds the servers of one Service. Make one with Parse.
type Finder struct {
	// Log may be nil.
	Log *zap.Logger

	client             *client
	namespace, service string
	portName           string
	portNumber         uint32
	template           workers.Template
	failed             string
}

// label is a name of Kubernetes: a namespace, a Service or a port.
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Parse returns the finder of the servers of a Kubernetes Service. text is
// NAMESPACE/SERVICE[:PORT][,key=value...], with the keys of workers.ParseTemplate. Without
// NAMESPACE/ the pod's own namespace counts. PORT is a number, or the name of a port of the Service.
func Parse(text string, c Cluster) (*Finder, error) {
	name, template, err := workers.ParseTemplate(text)
	if err != nil {
		return nil, err
	}
	f := &Finder{template: template, namespace: c.Namespace}
	rest, port, hasPort := strings.Cut(name, ":")
	f.service = rest
	if namespace, service, ok := strings.Cut(rest, "/"); ok {
		f.namespace, f.service = namespace, service
	}
	if !label.MatchString(f.namespace) || !label.MatchString(f.service) {
		return nil, fmt.Errorf("%.200q: want NAMESPACE/SERVICE[:PORT], with names of lower-case letters, digits and dashes", name)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
		f.portNumber = uint32(n)
	} else if hasPort {
		if !label.MatchString(port) || !strings.ContainsFunc(port, unicode.IsLetter) {
			return nil, fmt.Errorf("%.200q: port %.60q is not in 1..65535 and not the name of a port", name, port)
		}
		f.portName = port
	}
	f.client, err = newClient(c)
	return f, err
}

// Source implements workers.Finder.
func (*Finder) Source() string { return workers.FromKubernetes }

// Run implements workers.Finder: it lists the endpoint slices of the Service and then watches them.
// After an error it watches again from the same version, and it lists again when the API server no
// longer has that version.
func (f *Finder) Run(ctx context.Context, set func([]workers.Found)) error {
	f.Log = cmp.Or(f.Log, zap.NewNop())
	log := f.Log.With(zap.String("service", f.namespace+"/"+f.service))
	defer f.client.http.CloseIdleConnections()
	retries := backoff.Jittered(firstRetry, lastRetry)
	var all map[string]*endpointSlice // nil before a list
	version := ""
	publish := func() {
		found, err := f.servers(all)
		f.note(log, err)
		set(found)
	}
	for {
		var err error
		if all == nil {
			var listed map[string]*endpointSlice
			if listed, version, err = f.list(ctx); err == nil {
				all = listed
				publish()
			}
		}
		if err == nil {
			err = f.watch(ctx, all, &version, func() {
				retries.Reset()
				publish()
			})
		}
		pause := rewatch
		switch {
		case ctx.Err() != nil:
			return nil
		case gone(err):
			all = nil
		case err != nil:
			f.note(log, err)
			pause = retries.NextBackOff()
		}
		if !backoff.Wait(ctx, pause) {
			return nil
		}
	}
}

// note logs err once, until it changes or goes away. nil means that all servers are known.
func (f *Finder) note(log *zap.Logger, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != f.failed {
		log.Warn("workers of the Service are not known in full; the known ones stay", zap.Error(err))
	}
	f.failed = text
}

// path is the path of the namespace's slices.
func (f *Finder) path() string {
	return "/apis/discovery.k8s.io/v1/namespaces/" + f.namespace + "/endpointslices"
}

// query returns the query for the slices of the Service.
func (f *Finder) query() url.Values {
	return url.Values{"labelSelector": {"kubernetes.io/service-name=" + f.service}}
}

// sliceList is one page of a list.
type sliceList struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
	Items []*endpointSlice `json:"items"`
}

// list returns all endpoint slices of the Service by name, in as many pages as necessary, and the
// resource version to watch from.
func (f *Finder) list(ctx context.Context) (all map[string]*endpointSlice, version string, err error) {
	all = make(map[string]*endpointSlice)
	query := f.query()
	query.Set("limit", strconv.Itoa(pageSlices))
	for {
		page, err := f.page(ctx, query)
		if err != nil {
			return nil, "", fmt.Errorf("list endpoint slices: %w", err)
		}
		for _, s := range page.Items {
			all[s.Metadata.Name] = s
		}
		if len(all) > maxSlices {
			return nil, "", fmt.Errorf("list endpoint slices: more than %d", maxSlices)
		}
		if page.Metadata.Continue == "" {
			return all, page.Metadata.ResourceVersion, nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// page returns one page of the list of endpoint slices, at most maxPage bytes.
func (f *Finder) page(ctx context.Context, query url.Values) (*sliceList, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	body, err := f.client.get(ctx, f.path(), query)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, maxPage+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxPage {
		return nil, fmt.Errorf("body: want at most %d bytes", maxPage)
	}
	page := &sliceList{}
	return page, json.Unmarshal(data, page)
}

// watchEvent is one event of a watch.
type watchEvent struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// watch asks for the changes after *version, applies each to all and to *version, and then calls
// changed. It returns nil when the API server ends the watch in order, which it does after watchFor.
func (f *Finder) watch(ctx context.Context, all map[string]*endpointSlice, version *string, changed func()) error {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	query := f.query()
	query.Set("watch", "1")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersion", *version)
	query.Set("timeoutSeconds", strconv.Itoa(int(watchFor.Seconds())))
	body, err := f.client.get(ctx, f.path(), query)
	if err != nil {
		return fmt.Errorf("watch endpoint slices: %w", err)
	}
	defer body.Close()
	limited := &io.LimitedReader{R: body}
	decoder := json.NewDecoder(limited)
	for {
		limited.N = maxEvent // for each event anew
		var e watchEvent
		switch err := decoder.Decode(&e); {
		case errors.Is(err, io.EOF) && limited.N > 0:
			return nil
		case err != nil && limited.N <= 0:
			return fmt.Errorf("watch endpoint slices: an event has more than %d bytes", maxEvent)
		case err != nil:
			return fmt.Errorf("watch endpoint slices: %w", err)
		}
		if err := apply(&e, all, version); err != nil {
			return fmt.Errorf("watch endpoint slices: %w", err)
		}
		if e.Type != "BOOKMARK" { // a bookmark has only a newer version
			changed()
		}
	}
}

// apply applies one event of a watch to all, the slices by name, and sets *version to the event's
// resource version. The error is the API server's own for an ERROR event.
func apply(e *watchEvent, all map[string]*endpointSlice, version *string) error {
	if e.Type == "ERROR" {
		refused := &statusError{}
		if err := json.Unmarshal(e.Object, refused); err != nil {
			return err
		}
		return refused
	}
	s := &endpointSlice{}
	if err := json.Unmarshal(e.Object, s); err != nil {
		return fmt.Errorf("%s: %w", e.Type, err)
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		if all[s.Metadata.Name] == nil && len(all) >= maxSlices {
			return fmt.Errorf("more than %d", maxSlices)
		}
		all[s.Metadata.Name] = s
	case "DELETED":
		delete(all, s.Metadata.Name)
	case "BOOKMARK":
	default:
		return fmt.Errorf("event of the unknown type %.40q", e.Type)
	}
	*version = s.Metadata.ResourceVersion
	return nil
}
