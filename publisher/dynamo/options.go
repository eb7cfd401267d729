package dynamo

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

// Conn is a connection to NATS, such as nats.Conn of publisher/nats.
type Conn interface {
	// Publish sends data to a subject and does not keep data.
	Publish(subject string, data []byte) error
	// Connected reports whether a server is connected now.
	Connected() bool
	// MaxPayload returns how many bytes a message may have.
	MaxPayload() int64
}

// Options say which Dynamo endpoint to publish for, and how.
type Options struct {
	// Namespace, Component and Endpoint name the endpoint that the routers watch, for
	// example dynamo, backend and generate.
	Namespace, Component, Endpoint string
	// FileKV is the directory of the file discovery backend: DYN_FILE_KV of the routers.
	FileKV string
	// Recovery is the host:port for recovery queries; port 0 is any free one. Empty: sources
	// are live-only.
	Recovery string
	// Advertise is the host:port at which routers reach Recovery. Empty: the address of
	// Recovery, which must not be a wildcard then.
	Advertise string
	// AnyDialBack allows a request to name another host than its sender's for the answer.
	AnyDialBack bool
	// Log receives warnings; nil: none.
	Log *zap.Logger
}

// maxName bounds a part of an endpoint's name in bytes. A record's file name has all parts
// and at most 255 bytes.
const maxName = 64

// Validate checks the fields; the error names the first bad one.
func (o *Options) Validate() error {
	for _, n := range []struct{ field, value string }{
		{"namespace", o.Namespace}, {"component", o.Component}, {"endpoint", o.Endpoint},
	} {
		if err := checkName(n.value); err != nil {
			return fmt.Errorf("dynamo %s: %w", n.field, err)
		}
	}
	if o.FileKV == "" {
		return errors.New("dynamo discovery directory: want a path")
	}
	longestKey := o.sourceKey(1<<53 - 1) // with the largest publisher id
	if name := filepath.Base(o.recordPath(bucketSources, longestKey)); len(name) > 255 {
		return fmt.Errorf("dynamo endpoint %s.%s.%s: its record needs a file name of %d bytes, the limit is 255",
			o.Namespace, o.Component, o.Endpoint, len(name))
	}
	if o.Recovery == "" && o.Advertise != "" {
		return fmt.Errorf("dynamo advertised address %q: nothing is listened on", o.Advertise)
	}
	if err := checkAddress(o.Recovery, 0); err != nil {
		return fmt.Errorf("dynamo recovery address %w", err)
	}
	if err := checkAddress(o.Advertise, 1); err != nil {
		return fmt.Errorf("dynamo advertised address %w", err)
	}
	host, _, _ := net.SplitHostPort(o.Recovery)
	if o.Recovery != "" && o.Advertise == "" && isWildcard(host) {
		return fmt.Errorf("dynamo recovery address %q: an advertised address is needed, because this one names no host", o.Recovery)
	}
	return nil
}

// checkName refuses a name that would change the structure of a key or a path.
func checkName(s string) error {
	if s == "" || len(s) > maxName {
		return fmt.Errorf("%q: want 1 to %d bytes", s, maxName)
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r == '/' || r == 0x7f }); i >= 0 {
		return fmt.Errorf("%q: byte %d is not allowed", s, i)
	}
	return nil
}

// checkAddress checks that s is a host:port whose port is at least minPort, or empty.
func checkAddress(s string, minPort int) error {
	if s == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q: want host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || int(n) < minPort {
		return fmt.Errorf("%q: port %q is not in %d..65535", s, port, minPort)
	}
	return nil
}

// isWildcard reports whether host stands for every address of the machine.
func isWildcard(host string) bool {
	if host == "" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsUnspecified()
}

// subject returns the NATS subject of a topic.
func (o *Options) subject(topic string) string {
	return "namespace." + escape(o.Namespace, subjectByte) + ".component." + escape(o.Component, subjectByte) +
		".endpoint." + escape(o.Endpoint, subjectByte) + "." + escape(topic, subjectByte)
}

// subjectByte reports whether a byte stands for itself in a subject.
func subjectByte(b byte) bool { return alphanumeric(b) || b == '_' || b == '-' }

func alphanumeric(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
}

// escape returns s with percent-encoding: bytes for which plain returns false become % and two
// hexadecimal digits, as in Dynamo's keys and subjects.
func escape(s string, plain func(byte) bool) string {
	var b strings.Builder
	for i := range len(s) {
		if plain(s[i]) {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", s[i])
		}
	}
	return b.String()
}
