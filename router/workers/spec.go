package workers

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

const (
	// maxBlockSize bounds block sizes in tokens, maxPort the numbers of ports.
	maxBlockSize = 1 << 16
	maxPort      = 1<<16 - 1
	// maxKeyFile bounds the file of an API key in bytes.
	maxKeyFile = 4 << 10
)

// Spec names one server and what a person says of it.
type Spec struct {
	// URL is the base URL of the server.
	URL string
	// ID is the worker's id; 0 means a hash of URL.
	ID kv.WorkerID
	// Role is the part of a request that the server computes.
	Role Role
	// Model is the name under which the router knows the worker; empty means the server's
	// first base model.
	Model string
	// BlockSize is the number of tokens in a block, for a server that does not tell; 0 is
	// unknown.
	BlockSize uint32
	// Taints are labels that requests may require or prefer.
	Taints []string
	// Events and Replay are ZMQ addresses of rank 0, for a server that does not tell. The
	// port grows with the rank.
	Events, Replay string
	// APIKeyFile has the key that the server asks for; empty means none.
	APIKeyFile string

	// key is the content of APIKeyFile.
	key string
}

// ParseSpec returns the server that a flag --worker names: URL[,key=value...]. It also reads the
// file of the API key. The error names the key, its value and the accepted values.
func ParseSpec(text string) (Spec, error) {
	base, rest, _ := strings.Cut(text, ",")
	url, err := CleanURL(base)
	if err != nil {
		return Spec{}, err
	}
	s, err := parseKeys(rest)
	s.URL = url
	return s, err
}

// Template is what a person says of all servers that a finder finds.
type Template struct{ spec Spec }

// ParseTemplate reads NAME[,key=value...], which describes all servers of a finder. It returns the
// name, which the caller interprets, and the template of their specs. The keys are those of
// ParseSpec except id, because several servers cannot have one id.
func ParseTemplate(text string) (name string, t Template, err error) {
	name, rest, _ := strings.Cut(text, ",")
	t.spec, err = parseKeys(rest)
	if err == nil && t.spec.ID != 0 {
		err = fmt.Errorf("id: %d cannot be the id of several servers", uint64(t.spec.ID))
	}
	return name, t, err
}

// At returns the spec of the server at a base URL.
func (t *Template) At(base string) (Spec, error) {
	s := t.spec
	var err error
	s.URL, err = CleanURL(base)
	return s, err
}

// parseKeys returns the spec with the fields of key=value,key=value... and without a URL. Only taint
// may occur more than once. It reads the file of the API key.
func parseKeys(rest string) (s Spec, err error) {
	seen := make(map[string]bool)
	for rest != "" {
		var pair string
		pair, rest, _ = strings.Cut(rest, ",")
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return Spec{}, fmt.Errorf("%.200q: want key=value", pair)
		}
		if seen[key] && key != "taint" {
			return Spec{}, fmt.Errorf("%s: is there twice", key)
		}
		seen[key] = true
		if err := s.set(key, value); err != nil {
			return Spec{}, err
		}
	}
	return s, s.readKey()
}

// set sets the field of s that key names to value. The error names the key and the accepted values.
func (s *Spec) set(key, value string) (err error) {
	switch key {
	case "id":
		var id uint64
		if id, err = number(key, value, 1<<63-1); err == nil {
			s.ID = kv.WorkerID(id)
		}
	case "block-size":
		var size uint64
		if size, err = number(key, value, maxBlockSize); err == nil {
			s.BlockSize = uint32(size)
		}
	case "role":
		s.Role, err = parseRole(value)
	case "model":
		if value == "" || len(value) > kvevent.MaxModel {
			return fmt.Errorf("model: %d bytes, want 1 to %d", len(value), kvevent.MaxModel)
		}
		s.Model = value
	case "taint":
		s.Taints = append(s.Taints, value)
		_, err = kvevent.NewTaints(s.Taints)
	case "events":
		s.Events, err = value, checkZMQ(key, value)
	case "replay":
		s.Replay, err = value, checkZMQ(key, value)
	case "api-key-file":
		if value == "" {
			return errors.New("api-key-file: is empty, want a path")
		}
		s.APIKeyFile = value
	default:
		return fmt.Errorf("%.60q is not one of id, role, model, block-size, taint, events, replay, api-key-file", key)
	}
	return err
}

// number reads an integer of 1 to limit.
func number(key, value string, limit uint64) (uint64, error) {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil || n == 0 || n > limit {
		return 0, fmt.Errorf("%s: %.60q is not an integer in 1..%d", key, value, limit)
	}
	return n, nil
}

// parseRole returns the role of that name: both, prefill or decode.
func parseRole(name string) (Role, error) {
	for _, r := range []Role{RoleBoth, RolePrefill, RoleDecode} {
		if r.String() == name {
			return r, nil
		}
	}
	return 0, fmt.Errorf("role: %.60q is not one of both, prefill, decode", name)
}

// checkZMQ checks the address of a ZMQ socket.
func checkZMQ(key, value string) error {
	_, _, err := splitZMQ(value)
	if err != nil {
		return fmt.Errorf("%s: %.200q: want tcp://host:port", key, value)
	}
	return nil
}

// splitZMQ returns host and port of the address tcp://host:port. The host may be *. The caller
// describes the address in the error.
func splitZMQ(address string) (host string, port uint64, err error) {
	rest, ok := strings.CutPrefix(address, "tcp://")
	if !ok {
		return "", 0, errors.New("not tcp")
	}
	host, text, err := net.SplitHostPort(rest)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.ParseUint(text, 10, 16)
	if err == nil && (port == 0 || host == "") {
		err = errors.New("no host or no port")
	}
	return host, port, err
}

// readKey sets s.key to the content of the file s.APIKeyFile, if there is one. The error does not
// show the key.
func (s *Spec) readKey() error {
	if s.APIKeyFile == "" {
		return nil
	}
	f, err := os.Open(s.APIKeyFile)
	if err != nil {
		return fmt.Errorf("api-key-file: %w", err)
	}
	defer f.Close()
	buffer := make([]byte, maxKeyFile+1)
	n := 0
	for n < len(buffer) && err == nil {
		var more int
		more, err = f.Read(buffer[n:])
		n += more
	}
	key := strings.TrimSpace(string(buffer[:n]))
	if n > maxKeyFile || key == "" || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("api-key-file: %s: want one line of 1 to %d printable ASCII characters without spaces", s.APIKeyFile, maxKeyFile)
	}
	s.key = key
	return nil
}

// CleanURL returns the base URL in text in one canonical form, so that equal servers have equal
// URLs: scheme and host in lower case, no default port, no slash at the end. A query, a fragment
// and a user are errors. The error shows the URL unless it may contain a password.
func CleanURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "" || len(text) > kvevent.MaxEndpoint {
		return "", fmt.Errorf("%s: want http://host:port or https://host:port", source.ShownURL(text))
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if port != "" {
		if n, err := strconv.ParseUint(port, 10, 64); err != nil || n == 0 || n > maxPort {
			return "", fmt.Errorf("%s: port %q is not in 1..%d", source.ShownURL(text), port, maxPort)
		}
	}
	if port == "80" && u.Scheme == "http" || port == "443" && u.Scheme == "https" {
		port = ""
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" {
		host += ":" + port
	}
	return u.Scheme + "://" + host + strings.TrimRight(u.EscapedPath(), "/"), nil
}

// idOf returns the worker id of a URL: 63 bits, never 0, the same in every router.
func idOf(url string) kv.WorkerID { return kv.WorkerID(max(1, xxh3.HashString(url)>>1)) }

// id returns the worker's id.
func (s *Spec) id() kv.WorkerID {
	if s.ID != 0 {
		return s.ID
	}
	return idOf(s.URL)
}

// eventsOf returns the event endpoints of the ranks first to first+ranks-1. The spec has the
// endpoint of rank 0, and the port of each rank is that port plus the rank. The host * stands for
// the server's own.
func (s *Spec) eventsOf(first, ranks uint32) []EventSource {
	if s.Events == "" {
		return nil
	}
	host := ""
	if u, err := url.Parse(s.URL); err == nil {
		host = u.Hostname()
	}
	all := make([]EventSource, 0, ranks)
	for rank := first; rank-first < ranks; rank++ {
		endpoint, ok := rankEndpoint(s.Events, host, rank)
		if !ok {
			break
		}
		replay, _ := rankEndpoint(s.Replay, host, rank) // empty without an endpoint for replays
		all = append(all, EventSource{Rank: rank, Endpoint: endpoint, Replay: replay})
	}
	return all
}

// rankEndpoint returns the endpoint of a rank: the address of rank 0 with rank added to its port,
// and with ownHost in place of the host *. It returns false when the sum is no port.
func rankEndpoint(address, ownHost string, rank uint32) (string, bool) {
	host, port, err := splitZMQ(address)
	if err != nil || port+uint64(rank) > maxPort {
		return "", false
	}
	if host == "*" {
		host = ownHost
	}
	return "tcp://" + net.JoinHostPort(host, strconv.FormatUint(port+uint64(rank), 10)), true
}
