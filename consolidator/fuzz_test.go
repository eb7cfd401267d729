package consolidator

import (
	"testing"
)

// FuzzMessages: whatever parts arrive, parsing does not panic, and what it
// accepts has a payload.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{}, seqFrame(3), []byte{1}, []byte{}, 3)
	f.Fuzz(func(t *testing.T, a, b, c, d []byte, n int) {
		parts := [][]byte{a, b, c, d}
		if n < 0 || n > len(parts) {
			return
		}
		parts = parts[:n]
		if _, _, err := parseLive(parts); (err == nil) != (n == 3 && len(b) == 8) {
			t.Errorf("live %x: %v", parts, err)
		}
		if r, err := parseReply(parts); err == nil && r.end && len(r.payload) > 0 {
			t.Errorf("reply %x: %+v", parts, r)
		}
	})
}
