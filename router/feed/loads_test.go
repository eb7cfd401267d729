package feed

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestWhoListensHearsWhatIsKept: every report that is shown, and no other.
func TestWhoListensHearsWhatIsKept(t *testing.T) {
	var heard []kvevent.LoadReport
	table := newLoadTable()
	take := func(data []byte) {
		if r, ok := table.add(data, time.Now()); ok {
			heard = append(heard, r)
		}
	}
	r := kvevent.LoadReport{PublisherID: 1, Owner: kv.PoolOwner(2), Pool: kvevent.PoolLoad{BlockBytes: 3}}
	take(kvevent.AppendLoadReport(nil, &r))
	take([]byte{0xc1})
	for i := range uint64(maxLoads) {
		full := kvevent.LoadReport{PublisherID: 1, Owner: kv.PoolOwner(10 + i)}
		take(kvevent.AppendLoadReport(nil, &full))
	}
	s := table.stats()
	if len(heard) != maxLoads || heard[0] != r || s.Taken != maxLoads || s.Undecodable != 1 || s.Refused != 1 {
		t.Errorf("heard %d, the first %+v; %+v", len(heard), heard[0], s)
	}
}
