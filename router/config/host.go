package config

import (
	"net"
	"strings"
)

// maxHost bounds the name of a machine in bytes.
const maxHost = 253

// isHost reports whether text is an IP address or may be the name of a machine.
func isHost(text string) bool {
	return net.ParseIP(text) != nil || len(text) <= maxHost && !strings.ContainsFunc(text, notInName)
}

func notInName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_')
}
