package kvevent

import (
	"crypto/sha256"
	"fmt"
	"regexp"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// Subjects of the native stream. P is the publisher id as 16 hexadecimal
// digits and CLUSTER a name that keeps deployments on one NATS apart.
//
//	blockyard.CLUSTER.kv-events.P   Envelope
//	blockyard.CLUSTER.announce.P    Announcement; with an agent's id in place of P, AgentStatus
//	blockyard.CLUSTER.announce-ask.A  without content: agent A announces all its publishers soon
//	blockyard.CLUSTER.kv-query.P    QueryRequest, answered by QueryReply chunks
//	blockyard.CLUSTER.read-ahead.P  ReadAhead, without an answer
//	blockyard.CLUSTER.node.N        NodeClaim, answered by the NodeClaim of who has the name;
//	                                N is the first 16 hexadecimal digits of the name's SHA-256

var clusterName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// CheckCluster reports whether a cluster name can be part of a subject.
func CheckCluster(name string) error {
	if !clusterName.MatchString(name) {
		return fmt.Errorf("cluster %q: want 1 to 64 of the characters A-Z a-z 0-9 _ -", name)
	}
	return nil
}

// EventsSubject returns where publisher p publishes its envelopes.
func EventsSubject(cluster string, p uint64) string {
	return fmt.Sprintf("blockyard.%s.kv-events.%016x", cluster, p)
}

// AllEventsSubject returns a wildcard for every publisher's EventsSubject.
func AllEventsSubject(cluster string) string { return "blockyard." + cluster + ".kv-events.*" }

// AnnounceSubject returns where publisher p announces itself, and where agent p publishes its AgentStatus.
func AnnounceSubject(cluster string, p uint64) string {
	return fmt.Sprintf("blockyard.%s.announce.%016x", cluster, p)
}

// AllAnnounceSubject returns a wildcard for every publisher's AnnounceSubject.
func AllAnnounceSubject(cluster string) string { return "blockyard." + cluster + ".announce.*" }

// AnnounceAskSubject returns where an agent is asked for the announcements of all its publishers.
func AnnounceAskSubject(cluster string, agent uint64) string {
	return fmt.Sprintf("blockyard.%s.announce-ask.%016x", cluster, agent)
}

// QuerySubject returns where publisher p answers queries.
func QuerySubject(cluster string, p uint64) string {
	return fmt.Sprintf("blockyard.%s.kv-query.%016x", cluster, p)
}

// NodeSubject returns where the agent of a node answers for the node's name.
func NodeSubject(cluster, node string) string {
	sum := sha256.Sum256([]byte(node))
	return fmt.Sprintf("blockyard.%s.node.%x", cluster, sum[:8])
}

// StreamName returns the JetStream stream of a cluster's events and announcements.
func StreamName(cluster string) string { return "blockyard-" + cluster }

// StreamSubjects returns the subjects of that stream. Events and announcements
// share one stream, so that their order is kept.
func StreamSubjects(cluster string) []string {
	return []string{AllEventsSubject(cluster), AllAnnounceSubject(cluster)}
}

// SnapshotBucket returns the JetStream object store of a cluster's router
// snapshots.
func SnapshotBucket(cluster string) string { return "blockyard-" + cluster + "-router" }

// NodeClaim is sent to a NodeSubject by an agent that wants the name. The agent
// that has the name answers with its own NodeClaim.
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

// DecodeNodeClaim decodes a node claim. Unknown keys are skipped. A text of more
// than 256 bytes is an error.
func DecodeNodeClaim(b []byte) (NodeClaim, error) {
	var claim NodeClaim
	err := decodeMap(b, "node claim", func(c *msgpack.Reader, key []byte) {
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
	})
	if err != nil {
		return NodeClaim{}, err
	}
	return claim, nil
}

// readShortText reads a string of at most maxClaimText bytes. A longer one fails c.
func readShortText(c *msgpack.Reader) string {
	text := c.Text()
	if len(text) > maxClaimText {
		c.Fail("%d bytes of text, want at most %d", len(text), maxClaimText)
		return ""
	}
	return string(text)
}
