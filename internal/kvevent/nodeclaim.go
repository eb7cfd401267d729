package kvevent

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// NodeClaim is sent to a NodeSubject by an agent that wants the name, and is the
// answer of the agent that has it.
type NodeClaim struct {
	Node, Host string
	PID        uint64
}

// maxClaimText bounds the names in a NodeClaim, in bytes.
const maxClaimText = 256

// AppendNodeClaim appends c as a map of node, host and pid.
func AppendNodeClaim(dst []byte, c *NodeClaim) []byte {
	dst = msgp.AppendMapHeader(dst, 3)
	dst = msgp.AppendString(dst, "node")
	dst = msgp.AppendString(dst, c.Node)
	dst = msgp.AppendString(dst, "host")
	dst = msgp.AppendString(dst, c.Host)
	return appendUint(dst, "pid", c.PID)
}

// DecodeNodeClaim decodes what AppendNodeClaim writes. Keys that are not known are
// skipped; texts of more than 256 bytes are errors.
func DecodeNodeClaim(b []byte) (NodeClaim, error) {
	var claim NodeClaim
	c := cursor{buf: b}
	for range c.mapping() {
		key := c.text()
		switch string(key) {
		case "node":
			claim.Node = c.shortText()
		case "host":
			claim.Host = c.shortText()
		case "pid":
			claim.PID = c.uint64()
		default:
			c.skip()
		}
		if c.err != nil {
			return NodeClaim{}, fmt.Errorf("node claim: %.64q: %w", key, c.err)
		}
	}
	c.end()
	if c.err != nil {
		return NodeClaim{}, fmt.Errorf("node claim: %w", c.err)
	}
	return claim, nil
}

func (c *cursor) shortText() string {
	text := c.text()
	if len(text) > maxClaimText {
		c.fail("%d bytes of text, want at most %d", len(text), maxClaimText)
		return ""
	}
	return string(text)
}
