package admission

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Headers that say how a request waits in the router's queue.
const (
	PolicyClassHeader = "X-Dynamo-Meta-Policy-Class"
	DeadlineHeader    = "X-Blockyard-Deadline-Ms"
)

// Hints say how a request waits in the router's queue: see schedule.Request.
type Hints struct {
	PolicyClass string
	Deadline    time.Duration
}

// maxPolicyClass bounds a class's name in bytes. A longer one is no class.
const maxPolicyClass = 64

// HintsOf reads the headers of the queue. Every name is good, because an unknown class counts as the
// default one. The error names the header and the value.
func HintsOf(h http.Header) (Hints, error) {
	hints := Hints{PolicyClass: h.Get(PolicyClassHeader)}
	if len(hints.PolicyClass) > maxPolicyClass {
		hints.PolicyClass = ""
	}
	text := h.Get(DeadlineHeader)
	if text == "" {
		return hints, nil
	}
	ms, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return hints, fmt.Errorf("%s: %.32q is not a whole number of milliseconds", DeadlineHeader, text)
	}
	hints.Deadline = time.Duration(ms) * time.Millisecond
	return hints, nil
}
