package console

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// browser is a headless Chromium with one page. It is driven by the DevTools protocol over two
// pipes: JSON messages that end with a zero byte.
type browser struct {
	t    *testing.T
	out  io.WriteCloser
	page string // session of the page

	mu       sync.Mutex
	next     int
	waiting  map[int]chan message
	messages []string // errors that the page caused
	ended    error    // why no more messages come
}

// message is an answer, or an event without ID.
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// patience bounds each wait, look is the time between two looks.
const patience, look = 60 * time.Second, 100 * time.Millisecond

// openBrowser starts Chromium until the end of the test. The test is skipped without one.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	program := os.Getenv("BLOCKYARD_TEST_CHROMIUM")
	if program == "" {
		t.Skip("BLOCKYARD_TEST_CHROMIUM names no Chromium: make test-ops")
	}
	commands, toBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromBrowser, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	// The page is this repository's, and the machine may let nobody make namespaces: no sandbox.
	c := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	c.ExtraFiles = []*os.File{commands, answers} // 3 and 4, as the protocol wants
	c.Stderr, c.WaitDelay = &log, 5*time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_ = errors.Join(commands.Close(), answers.Close()) // Chromium has its own
	b := &browser{t: t, out: toBrowser, waiting: make(map[int]chan message)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(fromBrowser)
	}()
	t.Cleanup(func() {
		_ = toBrowser.Close() // Chromium ends without its driver
		time.AfterFunc(5*time.Second, func() { _ = c.Process.Kill() })
		_ = c.Wait()
		<-read
		_ = fromBrowser.Close()
		if t.Failed() {
			t.Logf("Chromium: %s", log.Bytes()[max(0, log.Len()-2000):])
		}
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.page = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Accessibility"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// read passes on the messages of the browser until it ends.
func (b *browser) read(from io.Reader) {
	r := bufio.NewReader(from)
	for {
		line, err := r.ReadBytes(0)
		var m message
		if err == nil {
			err = json.Unmarshal(line[:len(line)-1], &m)
		}
		b.mu.Lock()
		if err != nil {
			b.ended = err
			for _, w := range b.waiting {
				close(w)
			}
			clear(b.waiting)
			b.mu.Unlock()
			return
		}
		switch w := b.waiting[m.ID]; {
		case m.ID != 0 && w != nil:
			delete(b.waiting, m.ID)
			w <- m
		case m.Method == "Runtime.exceptionThrown" || m.Method == "Log.entryAdded" && bytes.Contains(m.Params, []byte(`"level":"error"`)):
			b.messages = append(b.messages, string(m.Params))
		}
		b.mu.Unlock()
	}
}

// call sends a command and reads its result.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	if err := b.try(method, params, result); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
}

// try is call with an error.
func (b *browser) try(method string, params, result any) error {
	answer := make(chan message, 1)
	b.mu.Lock()
	if b.ended != nil {
		b.mu.Unlock()
		return b.ended
	}
	b.next++
	id := b.next
	b.waiting[id] = answer
	b.mu.Unlock()
	text, err := json.Marshal(struct {
		ID      int    `json:"id"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
		Session string `json:"sessionId,omitempty"`
	}{id, method, params, b.page})
	if err != nil {
		return err
	}
	if _, err := b.out.Write(append(text, 0)); err != nil {
		return err
	}
	select {
	case m, ok := <-answer:
		switch {
		case !ok:
			return errors.New("the browser has ended")
		case m.Error != nil:
			return errors.New(m.Error.Message)
		case result == nil:
			return nil
		}
		return json.Unmarshal(m.Result, result)
	case <-time.After(patience):
		return errors.New("no answer")
	}
}

// node is an element as a screen reader has it.
type node struct{ role, name, value string }

// tree returns the elements of the page that a screen reader would tell.
func (b *browser) tree() (all []node) {
	b.t.Helper()
	type value struct{ Value any }
	var tree struct {
		Nodes []struct {
			Ignored           bool
			Role, Name, Value value
		}
	}
	b.call("Accessibility.getFullAXTree", nil, &tree)
	text := func(v value) string {
		if v.Value == nil {
			return ""
		}
		return fmt.Sprint(v.Value)
	}
	for _, n := range tree.Nodes {
		if !n.Ignored {
			all = append(all, node{text(n.Role), text(n.Name), text(n.Value)})
		}
	}
	return all
}

// has waits until the page has an element of a role whose name contains a text, and returns it.
func (b *browser) has(role, name string) (found node) {
	b.t.Helper()
	var seen []node
	err := cluster.Until(b.t.Context(), patience, look, func() (bool, error) {
		seen = b.tree()
		i := slices.IndexFunc(seen, func(n node) bool { return n.role == role && strings.Contains(n.name, name) })
		if i >= 0 {
			found = seen[i]
		}
		return i >= 0, nil
	})
	if err == nil {
		return found
	}
	var own []string
	for _, n := range seen {
		if n.role == role {
			own = append(own, n.name)
		}
	}
	b.t.Fatalf("the page has no %s %q; it has %q: %v", role, name, own, err)
	return found
}

// open shows a URL in a window of a size, with a colour scheme of the system.
func (b *browser) open(url string, width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]string{"name": "prefers-color-scheme", "value": scheme},
		map[string]string{"name": "prefers-reduced-motion", "value": "reduce"}}}, nil)
	b.call("Page.navigate", map[string]any{"url": url}, nil)
}

// eval returns the value of a JavaScript expression in the page.
func (b *browser) eval(expression string, into any) {
	b.t.Helper()
	var out struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out)
	if out.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, out.ExceptionDetails)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(out.Result.Value, into); err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
}

// press presses a key. text is what the key writes; empty for a key such as Tab.
func (b *browser) press(key, text string) {
	b.t.Helper()
	code := map[string]int{"Tab": 9, "Enter": 13, "Escape": 27}[key]
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code}, nil)
		text = ""
	}
}

// write writes a text where the focus is.
func (b *browser) write(text string) {
	b.t.Helper()
	b.call("Input.insertText", map[string]any{"text": text}, nil)
}

// shot writes a screenshot of the window to the directory of BLOCKYARD_TEST_SHOTS, if there is one.
func (b *browser) shot(name string) {
	b.t.Helper()
	dir := os.Getenv("BLOCKYARD_TEST_SHOTS")
	if dir == "" {
		return
	}
	var out struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &out)
	image, err := base64.StdEncoding.DecodeString(out.Data)
	if err = cmp.Or(err, os.WriteFile(filepath.Join(dir, name+".png"), image, 0o644)); err != nil {
		b.t.Fatal(err)
	}
}

// calm fails the test when the page has caused errors.
func (b *browser) calm() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.messages {
		b.t.Errorf("the browser reports: %s", m)
	}
	b.messages = nil
}
