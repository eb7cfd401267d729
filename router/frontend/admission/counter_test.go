package admission_test

import (
	"testing"

	"github.com/blockyard-ai/blockyard/router/frontend/admission"
)

func TestCounter(t *testing.T) {
	var c admission.Counter
	enter := func(name string, limit int, want bool) func() {
		t.Helper()
		leave, ok := c.Enter(name, limit)
		if ok != want {
			t.Errorf("%s with limit %d: %t, want %t", name, limit, ok, want)
		}
		return leave
	}
	one := enter("a", 2, true)
	enter("a", 2, true)
	enter("a", 2, false)
	enter("a", 0, true)
	enter("b", 1, true)
	one()
	one()
	enter("a", 2, true)
	enter("a", 2, false)
}
