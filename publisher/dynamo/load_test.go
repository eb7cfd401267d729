package dynamo

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func used(rank int, blocks uint64) kvevent.ActiveLoad {
	return kvevent.ActiveLoad{Worker: kv.Worker{ID: 9, Rank: kv.DPRank(rank)}, KVUsedBlocks: blocks, HasKVUsedBlocks: true}
}

// loadsSent decodes what was sent on the subject of loads.
func loadsSent(t *testing.T, c *fakeConn) []kvevent.ActiveLoad {
	t.Helper()
	var all []kvevent.ActiveLoad
	for _, m := range c.take() {
		if m.subject != "namespace.dynamo.component.backend.endpoint.generate.kv_metrics" {
			continue
		}
		l, err := kvevent.DecodeLoadEnvelope(m.data)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

func TestLoadsAreSaidOnceWhenTheyChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &fakeConn{}
		p := openBubble(t, conn, false)
		defer closeBubble(t, p)
		for i := range 10 {
			p.PublishLoad(used(0, uint64(i)))
		}
		time.Sleep(2 * loadDebounce)
		synctest.Wait()
		if got := loadsSent(t, conn); len(got) != 1 || got[0] != used(0, 9) {
			t.Errorf("ten quick changes: %+v", got)
		}
		p.PublishLoad(used(0, 9))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := loadsSent(t, conn); len(got) != 0 {
			t.Errorf("no change: %+v", got)
		}
	})
}

// TestRanksDoNotOverwriteEachOther: changes of many ranks within one debounce are
// all said.
func TestRanksDoNotOverwriteEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &fakeConn{}
		p := openBubble(t, conn, false)
		defer closeBubble(t, p)
		for rank := range 8 {
			p.PublishLoad(used(rank, uint64(rank)))
		}
		time.Sleep(2 * loadDebounce)
		synctest.Wait()
		seen := make(map[kvevent.ActiveLoad]bool)
		for _, l := range loadsSent(t, conn) {
			seen[l] = true
		}
		for rank := range 8 {
			if !seen[used(rank, uint64(rank))] {
				t.Errorf("rank %d was not heard", rank)
			}
		}
	})
}

func TestLoadsAreSaidAgainAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &fakeConn{}
		p := openBubble(t, conn, false)
		defer closeBubble(t, p)
		p.PublishLoad(used(0, 1))
		p.PublishLoad(used(1, 1))
		time.Sleep(time.Second)
		conn.take()
		conn.set(true, false)
		p.PublishLoad(used(0, 2))
		time.Sleep(time.Second)
		conn.set(false, true)
		time.Sleep(time.Second)
		conn.set(false, false)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := loadsSent(t, conn); len(got) != 2 {
			t.Errorf("%+v", got)
		}
		if p.Stats().LoadErrors == 0 {
			t.Error("refused loads were not counted")
		}
	})
}

func TestLoadsAreBounded(t *testing.T) {
	p := openPlane(t, testOptions(t), &fakeConn{away: true})
	for rank := range maxLoads + 3 {
		p.PublishLoad(used(rank, 1))
	}
	if got := p.Stats().LoadsDropped; got != 3 {
		t.Errorf("%d dropped", got)
	}
}
