package engineevent

import (
	"bytes"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// addGolden seeds f with the golden vectors and with one of them cut short.
func addGolden(f *testing.F) {
	for _, v := range golden(f) {
		f.Add(v)
		f.Add(v[:len(v)/2])
	}
}

func FuzzDecode(f *testing.F) {
	addGolden(f)
	f.Add(AppendBatch(nil, fullBatch()))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var d Decoder
		var first, second Batch
		kept := bytes.Clone(payload)
		if err := d.Decode(payload, &first); err != nil {
			return
		}
		encoded := AppendBatch(nil, &first)
		if err := d.Decode(encoded, &second); err != nil {
			t.Fatalf("own encoding %x: %v", encoded, err)
		}
		if !bytes.Equal(kept, payload) {
			t.Fatal("Decode changed its input")
		}
		if again := AppendBatch(nil, &second); !bytes.Equal(again, encoded) {
			t.Fatalf("encoded twice: %x and %x", encoded, again)
		}
		first.Bad = nil
		if math.IsNaN(first.Timestamp) { // which equals nothing
			first.Timestamp, second.Timestamp = 0, 0
		}
		if diff := cmp.Diff(first, second, visible); diff != "" {
			t.Fatalf("decoded twice: (-first +second)\n%s", diff)
		}
	})
}
