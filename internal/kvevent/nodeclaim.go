package kvevent

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/msgpack"
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
	c := msgpack.NewReader(b)
	for range c.Map() {
		key := c.Text()
		switch string(key) {
		case "node":
			claim.Node = readShortText(c)
		case "host":
			claim.Host = readShortText(c)
		case "pid":
			claim.PID = c.Uint64()
		default:
			c.Skip()
		}
		if c.Err != nil {
			return NodeClaim{}, fmt.Errorf("node claim: %.64q: %w", key, c.Err)
		}
	}
	c.End()
	if c.Err != nil {
		return NodeClaim{}, fmt.Errorf("node claim: %w", c.Err)
	}
	return claim, nil
}

func readShortText(c *msgpack.Reader) string {
	text := c.Text()
	if len(text) > maxClaimText {
		c.Fail("%d bytes of text, want at most %d", len(text), maxClaimText)
		return ""
	}
	return string(text)
}
