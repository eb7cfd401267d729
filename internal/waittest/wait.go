package waittest

import "time"

// patience is how long Until waits. A machine that is busy is no failure.
const patience = 30 * time.Second

// TB is what Until needs of a test. *testing.T, *testing.B and *rapid.T have it.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Until returns when holds returns true. It fails the test when that takes 30 s; what names the
// condition in the failure.
func Until(t TB, what string, holds func() bool) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-late.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
