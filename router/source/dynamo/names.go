package dynamo

import (
	"fmt"
	"strings"
)

// Endpoint is the name under which Dynamo's workers of one kind serve.
type Endpoint struct {
	Namespace, Component, Name string
}

// ParseEndpoint reads NAMESPACE.COMPONENT.ENDPOINT, with or without dyn:// in front. A
// namespace may contain dots.
func ParseEndpoint(s string) (Endpoint, error) {
	parts := strings.Split(strings.TrimPrefix(s, "dyn://"), ".")
	n := len(parts)
	if n >= 3 {
		e := Endpoint{strings.Join(parts[:n-2], "."), parts[n-2], parts[n-1]}
		if parts[0] != "" && e.Component != "" && e.Name != "" {
			return e, nil
		}
	}
	return Endpoint{}, fmt.Errorf("endpoint %.256q: want namespace.component.endpoint", s)
}

// String returns the text that ParseEndpoint reads.
func (e Endpoint) String() string { return e.Namespace + "." + e.Component + "." + e.Name }

// Subject returns the subject of a topic of the endpoint's publishers.
func (e Endpoint) Subject(topic string) string {
	segment := func(s string) string { return escape(s, "_-") }
	return "namespace." + segment(e.Namespace) + ".component." + segment(e.Component) +
		".endpoint." + segment(e.Name) + "." + segment(topic)
}

// cardPrefix begins the file names of the endpoint's model cards. A hexadecimal id follows.
func (e Endpoint) cardPrefix() string {
	return escape(e.Namespace+"/"+e.Component+"/"+e.Name+"/", "")
}

// sourcePrefix begins the file names of the endpoint's event sources. A hexadecimal id
// follows.
func (e Endpoint) sourcePrefix() string {
	return escape("namespace/"+e.Namespace+"/component/"+e.Component+"/endpoint/"+e.Name+"/topic/"+topic+"/", "")
}

// escape writes every byte but letters, digits and the bytes of keep as %XX.
func escape(s, keep string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', strings.IndexByte(keep, c) >= 0:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}
