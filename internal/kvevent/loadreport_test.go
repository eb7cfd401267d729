package kvevent

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestLoadReportsOfOtherVersions: a report without the measured figures is one without
// measures, and one that has them is read by whoever does not know them, because keys
// that are not known are passed over.
func TestLoadReportsOfOtherVersions(t *testing.T) {
	before := wire(t, dict{"publisher_id", 1, "owner_kind", "pool", "owner_id", 2, "dp_rank", 0, "read_queue", 3, "promote_micros", 4})
	got, err := DecodeLoadReport(before)
	want := LoadReport{PublisherID: 1, Owner: kv.PoolOwner(2), Pool: PoolLoad{ReadQueue: 3, PromoteMicros: 4}}
	if err != nil || got != want {
		t.Errorf("of an older version: %+v, %v", got, err)
	}
	after := wire(t, dict{"publisher_id", 1, "owner_kind", "pool", "owner_id", 2, "read_queue", 3, "disk_read_bytes", 5, "disk_read_watts", 6.5})
	got, err = DecodeLoadReport(after)
	want.Pool = PoolLoad{ReadQueue: 3, DiskReadBytes: 5}
	if err != nil || got != want {
		t.Errorf("of a newer version: %+v, %v", got, err)
	}
}
