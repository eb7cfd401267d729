package waittest

import "time"

// patience is how long Until and Pass wait. A machine that is busy is no failure.
const patience = 30 * time.Second

// TB is what Until and Pass need of a test. *testing.T, *testing.B and *rapid.T have it.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Until returns when holds returns true. It fails the test when that takes 30 s; what names the
// condition in the failure.
func Until(t TB, what string, holds func() bool) {
	t.Helper()
	Pass(t, func() string {
		if holds() {
			return ""
		}
		return what
	})
}

// Pass returns when check has no objection, an empty text. It fails the test when that takes 30 s,
// with the last objection.
func Pass(t TB, check func() (objection string)) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for objection := check(); objection != ""; objection = check() {
		select {
		case <-look.C:
		case <-late.C:
			t.Fatalf("not within %v: %s", patience, objection)
		}
	}
}
