package waittest_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/waittest"
)

// failure is the text of a failed test.
type failure string

// failing is a test that ends with its first failure.
type failing struct{}

func (failing) Helper() {}

func (failing) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

// TestUntilEndsWithTheConditionOrInFailure: at once, later and never.
func TestUntilEndsWithTheConditionOrInFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		waittest.Until(t, "now", func() bool { return true })
		if d := time.Since(start); d != 0 {
			t.Errorf("waited %v for what holds", d)
		}
		waittest.Until(t, "later", func() bool { return time.Since(start) > time.Second })
		if d := time.Since(start); d > 1010*time.Millisecond {
			t.Errorf("waited %v for what holds after a second", d)
		}
		defer func() {
			if f, _ := recover().(failure); !strings.HasSuffix(string(f), ": the moon falls") {
				t.Errorf("failure %q", f)
			}
		}()
		waittest.Until(failing{}, "the moon falls", func() bool { return false })
		t.Error("did not fail")
	})
}
