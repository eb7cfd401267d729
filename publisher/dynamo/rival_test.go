package dynamo

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestASecondSourceOfARankIsNoticed: old records, those of other ranks and what is
// no record do not count.
func TestASecondSourceOfARankIsNoticed(t *testing.T) {
	o := testOptions(t)
	p := openPlane(t, o, &fakeConn{})
	addSource(t, p, newFakeStream())
	rivals := func() uint64 {
		p.watchRivals()
		return p.Stats().RivalSources
	}
	write := func(publisher uint64, w kv.Worker) string {
		t.Helper()
		file := o.recordPath(bucketSources, o.sourceKey(publisher))
		b, err := json.Marshal(o.sourceRecord(publisher, w, nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write(1, kv.Worker{ID: testWorker.ID})
	if err := os.WriteFile(o.recordPath(bucketSources, "noise"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n := rivals(); n != 0 {
		t.Errorf("%d rivals", n)
	}
	file := write(2, testWorker)
	if n := rivals(); n != 1 {
		t.Errorf("%d rivals, want 1", n)
	}
	old := time.Now().Add(-2 * recordLife)
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	if n := rivals(); n != 0 {
		t.Errorf("%d rivals after one ended", n)
	}
}
