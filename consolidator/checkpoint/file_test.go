package checkpoint

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

const every = time.Minute

// testFile is a File in a directory of its own, with the errors that it has reported.
type testFile struct {
	*File
	count  Counters
	errors []error
}

func newTestFile(t *testing.T) *testFile {
	t.Helper()
	f := &testFile{}
	f.File = NewFile(filepath.Join(t.TempDir(), "rank"), every, &f.count, func(err error) { f.errors = append(f.errors, err) })
	return f
}

// state returns a function that appends text as a rank's state.
func state(text string) func([]byte) []byte {
	return func(dst []byte) []byte { return append(dst, text...) }
}

// save saves now, and waits until the file is written.
func (f *testFile) save(version uint64, text string) {
	f.Save(time.Now(), version, state(text))
	synctest.Wait()
}

// want checks that the file holds a state with its checksum.
func (f *testFile) want(t *testing.T, text string) {
	t.Helper()
	b, err := os.ReadFile(f.path)
	if want := AppendChecksum([]byte(text)); err != nil || string(b) != string(want) {
		t.Errorf("file has %q, error %v; want %q with its checksum", b, err, text)
	}
}

// TestSaveWritesChangesAtMostOnceInEvery: Due says when Save writes next.
func TestSaveWritesChangesAtMostOnceInEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFile(t)
		if at := f.Due(0); !at.IsZero() {
			t.Errorf("due at %v without a change", at)
		}
		f.save(0, "unchanged")
		if _, err := os.Stat(f.path); !os.IsNotExist(err) {
			t.Errorf("a state without a change is written: error %v", err)
		}
		f.save(1, "first")
		f.want(t, "first")
		if at := f.Due(1); !at.IsZero() {
			t.Errorf("due at %v after the last change was saved", at)
		}
		if got, want := f.Due(2), time.Now().Add(every); !got.Equal(want) {
			t.Errorf("due at %v, want %v", got, want)
		}
		time.Sleep(every - 1)
		f.save(2, "too soon")
		f.want(t, "first")
		time.Sleep(1)
		f.save(2, "second")
		f.want(t, "second")
		f.Finish(2, state("unchanged"))
		f.want(t, "second")
		f.Finish(3, state("last"))
		f.want(t, "last")
		if w := f.count.Written.Load(); w != 3 || len(f.errors) > 0 {
			t.Errorf("%d writes, errors %v; want 3 and none", w, f.errors)
		}
	})
}

// TestSlowCopyDelaysTheNextOne: copying the state takes at most a 200th of the caller's time.
func TestSlowCopyDelaysTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFile(t)
		const took = 10 * time.Second
		begin := time.Now()
		f.Save(begin, 1, func(dst []byte) []byte { time.Sleep(took); return append(dst, "slow"...) })
		if got, want := f.Due(2), begin.Add(copyShare*took); !got.Equal(want) {
			t.Errorf("due %v after the begin, want %v", got.Sub(begin), want.Sub(begin))
		}
		f.Finish(1, nil)
		f.want(t, "slow")
	})
}

// TestFailedWriteIsCountedAndTriedAgain: the file before it stays whole.
func TestFailedWriteIsCountedAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFile(t)
		f.save(1, "first")
		blocked := f.path + ".new"
		if err := os.Mkdir(blocked, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(every)
		f.save(2, "second")
		f.want(t, "first")
		time.Sleep(every)
		f.save(3, "third")
		if failed := f.count.Failed.Load(); failed != 2 || len(f.errors) != 1 {
			t.Errorf("%d failures counted, reported %v; want 2, and the first reported by the save after it", failed, f.errors)
		}
		if err := os.Remove(blocked); err != nil {
			t.Fatal(err)
		}
		time.Sleep(every)
		f.save(4, "fourth")
		f.want(t, "fourth")
		if w := f.count.Written.Load(); w != 2 || len(f.errors) != 2 {
			t.Errorf("%d writes, errors %v; want 2 and 2", w, f.errors)
		}
		f.Finish(4, nil)
	})
}

func TestRemoveDeletesTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFile(t)
		f.Remove() // of an absent file
		f.Save(time.Now(), 1, state("state"))
		f.Remove() // waits for the write
		if _, err := os.Stat(f.path); !os.IsNotExist(err) {
			t.Errorf("the file is there: error %v", err)
		}
		if w := f.count.Written.Load(); w != 1 || len(f.errors) > 0 {
			t.Errorf("%d writes, errors %v; want 1 and none", w, f.errors)
		}
		if err := os.MkdirAll(filepath.Join(f.path, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		f.Remove()
		if len(f.errors) != 1 {
			t.Errorf("errors %v, want that of a path that cannot be removed", f.errors)
		}
	})
}

func TestFileWithoutAPathDoesNothing(t *testing.T) {
	var c Counters
	f := NewFile("", every, &c, func(err error) { t.Error(err) })
	fail := func([]byte) []byte { t.Error("the state is copied"); return nil }
	f.Save(time.Now(), 1, fail)
	f.Finish(1, fail)
	f.Remove()
	if at := f.Due(1); !at.IsZero() {
		t.Errorf("due at %v", at)
	}
	if c.Written.Load()+c.Failed.Load() > 0 {
		t.Errorf("%d writes, %d failures", c.Written.Load(), c.Failed.Load())
	}
}
