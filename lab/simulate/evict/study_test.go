package evict

import (
	"testing"
)

func TestStudy(t *testing.T) {
	if _, err := Run(Options{Seeds: 1, Scenarios: Patterns(), Out: t.Output()}); err != nil {
		t.Fatal(err)
	}
}
