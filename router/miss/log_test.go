package miss

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A Log has the last entries, newest first, and the sums of all.
func TestLogKeepsTheLast(t *testing.T) {
	var l Log
	for i := range maxEntries + 3 {
		l.Add(&Entry{Request: fmt.Sprint(i), Report: Report{Parts: []Part{{Cause: Evicted, Tokens: 2}}}})
	}
	all := l.Recent(2 * maxEntries)
	if len(all) != maxEntries || all[0].Request != fmt.Sprint(maxEntries+2) || all[maxEntries-1].Request != "3" {
		t.Errorf("%d entries from %q to %q", len(all), all[0].Request, all[len(all)-1].Request)
	}
	if two := l.Recent(2); len(two) != 2 || two[1].Request != fmt.Sprint(maxEntries+1) {
		t.Errorf("the last two are %v", two)
	}
	if n := l.Tokens()["evicted"]; n != 2*(maxEntries+3) {
		t.Errorf("%d tokens are evicted, want %d", n, 2*(maxEntries+3))
	}
}

// A request waits a second for late events, unless too many blocks wait.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Log
		begun := time.Now()
		explained := make(chan time.Duration, 2)
		note := func() { explained <- time.Since(begun) }
		l.Settle(maxSettling, note)
		l.Settle(1, note)
		if after := <-explained; after != 0 || l.Stats().Hurried != 1 {
			t.Errorf("a request beyond the bound waited %v, %d hurried", after, l.Stats().Hurried)
		}
		if after := <-explained; after != settleTime {
			t.Errorf("a request waited %v, want %v", after, settleTime)
		}
		synctest.Wait()
		l.Settle(maxSettling, note)
		if after := <-explained; after != 2*settleTime {
			t.Errorf("a request waited until %v, want %v: the first one has made room", after, 2*settleTime)
		}
	})
}
