package kvevent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// Taints are the labels of a worker, for requests that require or prefer some:
// in order, each once, with commas between. Two of the same labels are equal. Empty
// is none. Make them with NewTaints.
type Taints string

const (
	// MaxTaints bounds the labels of a worker, MaxTaint the bytes of one.
	MaxTaints = 64
	MaxTaint  = 128
)

// NewTaints puts labels together. The error names the one that is empty, longer
// than MaxTaint, not of printable ASCII, or has a comma or a space, or says that there are more
// than MaxTaints.
func NewTaints(labels []string) (Taints, error) {
	if len(labels) > MaxTaints {
		return "", fmt.Errorf("taints: %d are more than %d", len(labels), MaxTaints)
	}
	for i, l := range labels {
		if l == "" || len(l) > MaxTaint {
			return "", fmt.Errorf("taints[%d]: %d bytes, want 1 to %d", i, len(l), MaxTaint)
		}
		if at := strings.IndexFunc(l, func(r rune) bool { return r <= ' ' || r > '~' || r == ',' }); at >= 0 {
			return "", fmt.Errorf("taints[%d]: %.64q has a character at %d that is no printable ASCII, or a comma or space", i, l, at)
		}
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(labels)))
	return Taints(strings.Join(sorted, ",")), nil
}

// List are the labels, in order; nil for none. The caller owns it.
func (t Taints) List() []string {
	if t == "" {
		return nil
	}
	return strings.Split(string(t), ",")
}

func (t Taints) append(dst []byte, key string) []byte {
	list := t.List()
	dst = msgp.AppendString(dst, key)
	dst = msgp.AppendArrayHeader(dst, uint32(len(list)))
	for _, label := range list {
		dst = msgp.AppendString(dst, label)
	}
	return dst
}

// readTaints reads an array of labels.
func readTaints(c *msgpack.Reader) Taints {
	n := c.Array()
	if n > MaxTaints {
		c.Fail("%d labels, want at most %d", n, MaxTaints)
		return ""
	}
	labels := make([]string, 0, n)
	for range n {
		labels = append(labels, c.BoundedText(MaxTaint))
	}
	if c.Err != nil {
		return ""
	}
	t, err := NewTaints(labels)
	if err != nil {
		c.Fail("%v", err)
	}
	return t
}
