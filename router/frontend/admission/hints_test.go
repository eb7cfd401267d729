package admission

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestHints(t *testing.T) {
	h := http.Header{}
	h.Set("x-dynamo-meta-policy-class", "agents")
	h.Set("x-blockyard-deadline-ms", "1500")
	if got, err := HintsOf(h); err != nil || got != (Hints{"agents", 1500 * time.Millisecond}) {
		t.Errorf("%+v, %v", got, err)
	}
	h.Set(PolicyClassHeader, strings.Repeat("x", 65))
	h.Set(DeadlineHeader, "-1")
	if got, err := HintsOf(h); err == nil || !strings.Contains(err.Error(), `X-Blockyard-Deadline-Ms: "-1"`) || got.PolicyClass != "" {
		t.Errorf("%+v, %v", got, err)
	}
}
