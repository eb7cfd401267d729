package natsauth

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

var hostName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,255}$`)

// CheckServers checks a list of NATS servers, with commas between them, such as
// nats://user:password@host:4222 or tls://host. What passes is understood by the
// NATS client, whose own errors show what they do not understand. The error of
// CheckServers shows nothing of a URL, since any part of it may be a password.
func CheckServers(urls string) error {
	for i, s := range strings.Split(urls, ",") {
		if why := badServer(strings.TrimSpace(s)); why != "" {
			return fmt.Errorf("url: server %d of the list: %s", i+1, why)
		}
	}
	return nil
}

// badServer says what is wrong with a server's URL, empty for nothing.
func badServer(s string) string {
	const form = "want nats:// or tls://, and then [user:password@]host[:port]"
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return form + "; bytes that URLs give a meaning stand in user and password as % and two hexadecimal digits"
	case u.Scheme != "nats" && u.Scheme != "tls", strings.Trim(u.Path, "/") != "", u.Opaque != "",
		u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		return form
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if strings.HasSuffix(u.Host, ":") || u.Port() != "" && (err != nil || port == 0) {
		return "port: want 1..65535"
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil && !hostName.MatchString(u.Hostname()) {
		return "host: want a name or an IP address, IPv6 in brackets"
	}
	return ""
}
