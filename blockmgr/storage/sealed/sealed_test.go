package sealed_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testKey returns a key of 32 equal bytes.
func testKey(t testing.TB, b byte) *sealed.Key {
	t.Helper()
	k, err := sealed.ParseKey(bytes.Repeat([]byte{b}, sealed.KeyBytes), "test")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func cipherOf(t testing.TB, dir string, key *sealed.Key, ns kv.NamespaceID, id uint32) *sealed.Extent {
	t.Helper()
	a, err := sealed.Open(dir, key)
	if err != nil {
		t.Fatal(err)
	}
	e, err := a.Extent(ns, id)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestKeysHaveThreeForms(t *testing.T) {
	raw := []byte("0123456789abcdef0123456789ABCDEg")
	dir := t.TempDir()
	for i, text := range [][]byte{raw, []byte(hex.EncodeToString(raw)), []byte("  " + strings.ToUpper(hex.EncodeToString(raw)) + "\n"),
		[]byte(base64.StdEncoding.EncodeToString(raw) + "\n"), []byte(base64.RawStdEncoding.EncodeToString(raw))} {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		key, err := sealed.Source{File: path}.Load(t.Context())
		if err != nil {
			t.Fatalf("form %d: %v", i, err)
		}
		if _, err := sealed.Open(dir, key); err != nil { // the first one makes the arena
			t.Errorf("form %d: %v", i, err)
		}
	}
	for _, text := range []string{"", "short", string(raw) + "x", strings.Repeat("g", 64), string(make([]byte, 32)), strings.Repeat("0", 64)} {
		if k, err := sealed.ParseKey([]byte(text), "test"); err == nil || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("text %q: key %v, error %v", text, k, err)
		}
	}
}

// 32 hexadecimal digits are half a key, with a newline and without one.
func TestHalfAKeyIsRefused(t *testing.T) {
	const digits = "0123456789abcdef0123456789ABCDEF"
	for _, text := range []string{digits, digits + "\n", " " + digits + "\r\n"} {
		if k, err := sealed.ParseKey([]byte(text), "test"); err == nil || !strings.Contains(err.Error(), "want 64") || strings.Contains(err.Error(), digits) {
			t.Errorf("text %q: key %v, error %v", text, k, err)
		}
	}
}

// No way to print a key, a source or a struct with one shows its bytes.
func TestKeysAreNotShown(t *testing.T) {
	secret := "0123456789abcdef0123456789ABCDEg"
	key, err := sealed.ParseKey([]byte(secret), "/etc/key")
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(struct{ Key *sealed.Key }{key})
	if err != nil {
		t.Fatal(err)
	}
	shown := string(asJSON)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		shown += fmt.Sprintf(verb+verb+verb+verb, key, *key, struct{ K sealed.Key }{*key}, []*sealed.Key{key})
	}
	for _, form := range []string{secret, hex.EncodeToString([]byte(secret)), "48 49 50", "0x30, 0x31"} {
		if strings.Contains(shown, form) {
			t.Errorf("the key is shown: %s", shown)
		}
	}
	if fmt.Sprint(key) != "key from /etc/key" {
		t.Errorf("key is shown as %v", key)
	}
}

func TestKeyFilesAreTheirOwnersAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(strings.Repeat("ab", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o440: true, 0o644: false, 0o620: false, 0o604: false, 0o602: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := (sealed.Source{File: path}).Load(t.Context()); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
	if _, err := (sealed.Source{File: path + "x"}).Load(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := (sealed.Source{File: filepath.Dir(path)}).Load(t.Context()); err == nil {
		t.Error("a directory is a key")
	}
	fifo := path + ".fifo"
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	go func() {
		_, err := sealed.Source{File: fifo}.Load(t.Context())
		refused <- err
	}()
	waittest.Until(t, "a FIFO is refused", func() bool { return len(refused) > 0 })
	if err := <-refused; err == nil || !strings.Contains(err.Error(), "want a regular file") {
		t.Errorf("a FIFO: %v", err)
	}
	if err := (sealed.Source{File: path, Command: "true"}).Validate(); err == nil {
		t.Error("a file and a command are taken together")
	}
}

func TestCommandsTellKeys(t *testing.T) {
	digits := strings.Repeat("ab", 32)
	if k, err := (sealed.Source{Command: "echo noise >&2; echo " + digits}).Load(t.Context()); err != nil || fmt.Sprint(k) != "key from command" {
		t.Errorf("key %v, %v", k, err)
	}
	for command, want := range map[string]string{
		"echo no such key >&2; exit 3":   "exit status 3: no such key",
		"true":                           "key of 0 bytes",
		"head -c 100000 /dev/zero":       "key of 1025 bytes",
		"echo " + digits + "; exit 1":    "exit status 1",
		"cd /nonexistent-dir-of-the-key": "exit status",
	} {
		if _, err := (sealed.Source{Command: command}).Load(t.Context()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), digits) {
			t.Errorf("command %q: %v, want %q", command, err, want)
		}
	}
}

// The end of a command and the end of the start end the command's children as well.
func TestCommandsLeaveNoChildren(t *testing.T) {
	digits := strings.Repeat("ab", 32)
	for name, c := range map[string]struct {
		child, command string
		cancel         bool // while the child runs
		want           error
		text           string // of the error; empty for none
	}{
		"cancelled":        {"sleep 3600", "sleep 3600", true, context.Canceled, "the agent was stopped"},
		"output is open":   {"sleep 3600", "echo " + digits, false, exec.ErrWaitDelay, "a child process keeps"},
		"output is closed": {"sleep 3600 >&- 2>&-", "echo " + digits, false, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "pid")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			loaded := make(chan error, 1)
			go func() {
				_, err := sealed.Source{Command: fmt.Sprintf("%s & echo $! > %s.new; mv %[2]s.new %[2]s; %s", c.child, path, c.command)}.Load(ctx)
				loaded <- err
			}()
			var pid int
			waittest.Until(t, "the child runs", func() bool {
				text, err := os.ReadFile(path)
				if err == nil {
					pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
				}
				return err == nil
			})
			if c.cancel {
				cancel()
			}
			if err := <-loaded; !errors.Is(err, c.want) || err != nil && (!strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "no key within")) {
				t.Errorf("error %v", err)
			}
			waittest.Until(t, "the child is gone", func() bool { return !alive(pid) })
		})
	}
}

// alive reports whether a process runs. One that has ended and that its parent has not waited for does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, ok := strings.Cut(string(stat), ") ")
	return err == nil && ok && state[0] != 'Z' && state[0] != 'X'
}

// An arena is opened with the key that wrote it, and with no other and not without.
func TestArenasKnowTheirKey(t *testing.T) {
	dir, key, other := t.TempDir(), testKey(t, 1), testKey(t, 2)
	if err := sealed.Check(dir, nil); err != nil {
		t.Errorf("an arena in clear: %v", err)
	}
	refuse := func(what string, key *sealed.Key, want string) {
		t.Helper()
		err := sealed.Check(dir, key)
		if !errors.Is(err, sealed.ErrKey) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), filepath.Join(dir, "slots.key")) ||
			!strings.Contains(err.Error(), "--disk-key-reset") {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	refuse("an arena in clear and a key", key, "not encrypted")
	if _, err := sealed.Open(dir, key); err != nil {
		t.Fatal(err)
	}
	if err := sealed.Check(dir, key); err != nil {
		t.Errorf("the arena's key: %v", err)
	}
	refuse("another key", other, "another key")
	refuse("no key", nil, "is encrypted")
	path := filepath.Join(dir, "slots.key")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		flipped := bytes.Clone(whole)
		flipped[i] ^= 1
		if err := os.WriteFile(path, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		refuse(fmt.Sprintf("byte %d is flipped", i), key, "damaged")
	}
	if err := os.WriteFile(path, whole[:len(whole)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	refuse("the file is cut", key, "damaged")
	if err := sealed.Remove(dir); err != nil || sealed.Check(dir, nil) != nil || sealed.Remove(dir) != nil {
		t.Errorf("after Remove: %v", err)
	}
}

// A slot is opened as what it was sealed as, in its place, and as nothing else.
func TestSlotsAreBoundToTheirPlace(t *testing.T) {
	dir, ns := t.TempDir(), kv.NamespaceID{1}
	e := cipherOf(t, dir, testKey(t, 1), ns, 7)
	again := cipherOf(t, dir, testKey(t, 1), ns, 7) // the next agent
	others := map[string]*sealed.Extent{
		"another extent":    cipherOf(t, dir, testKey(t, 1), ns, 8),
		"another namespace": cipherOf(t, dir, testKey(t, 1), kv.NamespaceID{2}, 7),
		"another arena":     cipherOf(t, t.TempDir(), testKey(t, 1), ns, 7),
	}
	rapid.Check(t, func(t *rapid.T) {
		n := extent.PageSize * rapid.IntRange(1, 3).Draw(t, "pages")
		slot := rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "slot")
		i, life := rapid.Uint32().Draw(t, "index"), extent.Life{Generation: rapid.Uint64().Draw(t, "generation")}
		copy(life.Key[:], rapid.SliceOfN(rapid.Byte(), 20, 20).Draw(t, "key"))
		text := make([]byte, n+extent.SealBytes)
		e.Seal(text, slot, i, life)
		got := make([]byte, n)
		if err := again.Open(got, text, i, life); err != nil || !bytes.Equal(got, slot) {
			t.Fatalf("the same slot: %v", err)
		}
		refused := func(what string, err error) {
			if !errors.Is(err, extent.ErrForged) {
				t.Errorf("%s: %v", what, err)
			}
		}
		for what, other := range others {
			refused(what, other.Open(got, text, i, life))
		}
		refused("another slot", e.Open(got, text, i+1, life))
		refused("another generation", e.Open(got, text, i, extent.Life{Key: life.Key, Generation: life.Generation + 1}))
		key := life.Key
		key[rapid.IntRange(0, 19).Draw(t, "byte of the key")] ^= 1
		refused("another block", e.Open(got, text, i, extent.Life{Key: key, Generation: life.Generation}))
		flip := rapid.IntRange(0, n+27).Draw(t, "flipped byte")
		text[flip] ^= 1
		refused("a flipped byte", e.Open(got, text, i, life))
		if bytes.Equal(got, slot) && !bytes.Equal(slot, make([]byte, n)) {
			t.Error("bytes of a refused slot are told")
		}
	})
}

// Two seals of one slot have nothing in common, and nothing of another block is behind them.
func TestNoncesAreNew(t *testing.T) {
	e := cipherOf(t, t.TempDir(), testKey(t, 1), kv.NamespaceID{}, 1)
	slot := bytes.Repeat([]byte("marker!!"), extent.PageSize/8)
	a, b := bytes.Repeat([]byte{0xff}, 2*extent.PageSize), make([]byte, 2*extent.PageSize)
	e.Seal(a, slot, 1, extent.Life{})
	e.Seal(b, slot, 1, extent.Life{})
	for i := 0; i < extent.PageSize; i += 16 {
		if bytes.Equal(a[i:i+16], b[i:i+16]) {
			t.Fatalf("byte %d: two seals are equal", i)
		}
	}
	if bytes.Contains(a, slot[:16]) || !bytes.Equal(a[extent.PageSize+28:], make([]byte, extent.PageSize-28)) {
		t.Error("clear text is in the sealed slot, or something is behind it")
	}
}

// The formats are frozen: slots.key and a slot that an earlier version wrote are opened for ever.
func TestFormatsAreFrozen(t *testing.T) {
	dir := t.TempDir()
	file, err := os.ReadFile("testdata/slots.key.hex")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := hex.DecodeString(strings.TrimSpace(string(file)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "slots.key"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/slot.hex")
	if err != nil {
		t.Fatal(err)
	}
	slot, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 64)
	life := extent.Life{Key: kv.BlockKey{3: 4}.InGroup(2), Generation: 5}
	if err := cipherOf(t, dir, testKey(t, 1), kv.NamespaceID{6}, 7).Open(got, slot, 8, life); err != nil || string(got[:6]) != "frozen" {
		t.Errorf("slot %q, %v", got, err)
	}
}
