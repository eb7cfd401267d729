package console

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// phone and desk are the sizes of the windows.
var phone, desk = [2]int{390, 844}, [2]int{1280, 900}

// Every view of the router shows what the cluster does: found by role and name, in both colour
// schemes and at the width of a phone, without an error in the browser.
func TestRouterConsole(t *testing.T) {
	b := openBrowser(t)
	bed := newBed(t)
	bed.traffic()
	url := bed.router.URL + "/"
	b.minutes(bed.router.Endpoint) // the page shows the time before it opened
	b.open(url, desk[0], desk[1], "dark")
	b.has("heading", "Cluster")
	b.has("image", "Hit rate by tier (% of prompt tokens), now: device ")
	b.has("image", "Prefill time saved by hits (seconds per second), now: ")
	b.has("group", "Worker 1/0")
	b.has("group", "Worker 4/0")
	b.has("meter", "host used")
	b.has("rowheader", simulated)
	b.has("group", "Hit rate")
	b.shot("router-dark")

	b.press("2", "2")
	b.has("heading", "Last decisions")
	b.has("button", "worker ")
	b.eval(`document.querySelector('.decision').click()`, nil)
	b.has("columnheader", "Cost by ")
	b.has("rowheader", "chosen")
	b.eval(`document.querySelector('.decision[aria-expanded=true]').click()`, nil)
	// Decisions have the other workers too, since somebody looks. The page shows them at its next look.
	bed.until("a decision with all workers is open", func() (opened bool, err error) {
		var list []struct {
			ID          string `json:"request_id"`
			Explanation struct{ Compared int }
		}
		if err = bed.router.Get(t.Context(), "/v1/decisions", &list); err != nil {
			return false, err
		}
		for _, d := range list {
			if d.Explanation.Compared > 2 && !opened {
				b.eval(fmt.Sprintf(`(() => { const e = document.querySelector('[data-id=%q]'); e?.click(); return e !== null; })()`, d.ID), &opened)
			}
		}
		return opened, nil
	})
	b.has("StaticText", "4 workers compared")
	b.shot("decisions-dark")

	b.prompts(bed)
	b.press("4", "4")
	b.has("heading", "Publishers")
	b.has("rowheader", "worker 1/0")
	b.has("rowheader", bed.agents[0].URL)
	b.press("5", "5")
	b.has("heading", "Misses by cause")
	b.has("rowheader", "new content")
	b.shot("misses-dark")

	b.open(url, desk[0], desk[1], "light")
	b.has("group", "Worker 1/0")
	b.shot("router-light")
	b.open(url, phone[0], phone[1], "light")
	b.has("group", "Worker 1/0")
	b.fits()
	b.shot("router-phone")
	b.calm()
}

// minutes waits until a process has a history, for screenshots one of some minutes.
func (b *browser) minutes(of cluster.Endpoint) {
	b.t.Helper()
	want := 3
	if os.Getenv("BLOCKYARD_TEST_SHOTS") != "" {
		want = 20
	}
	var past struct{ At []int64 }
	if err := cluster.Until(b.t.Context(), 10*time.Minute, time.Second, func() (bool, error) {
		err := of.Get(b.t.Context(), "/v1/history", &past)
		return len(past.At) >= want, err
	}); err != nil {
		b.t.Fatal(err)
	}
}

// prompts asks where a prompt's blocks are, by token ids and by text.
func (b *browser) prompts(bed *bed) {
	b.t.Helper()
	tokens := prompt(3, 4)
	if err := bed.generate(b.t.Context(), "shown", tokens); err != nil {
		b.t.Fatal(err)
	}
	b.press("3", "3")
	b.has("heading", "A prompt’s blocks")
	b.has("combobox", "Model")
	fill := func(text, model string) {
		b.eval(`document.querySelector('[name=prompt]').select(), document.querySelector('[name=prompt]').focus()`, nil)
		b.write(text)
		b.eval(fmt.Sprintf(`document.querySelector('[name=model]').value = %q`, model), nil)
		b.press("Tab", "")
		b.eval(`document.querySelector('form#prompt').requestSubmit()`, nil)
	}
	ids, _ := json.Marshal(tokens) // numbers always have JSON
	fill(string(ids), simulated)
	b.has("StaticText", fmt.Sprintf("are %d blocks of %d.", (len(tokens)+blockSize-1)/blockSize, blockSize))
	b.has("rowheader", "would get it")
	b.has("image", " device · ")
	b.has("heading", "Where it would go")
	b.shot("prompt-dark")
	fill("a text of some words", stubModel)
	b.has("heading", "Blocks by worker")
	b.has("StaticText", " tokens are ")
	if n := b.has("textbox", "Prompt"); !strings.HasPrefix(n.value, "a text") {
		b.t.Errorf("the field has lost its text: %q", n.value)
	}
	b.eval(`document.activeElement.blur()`, nil)
}

// fits fails the test when the page is wider than its window.
func (b *browser) fits() {
	b.t.Helper()
	var wide []string
	b.eval(`[...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll') && !e.closest('.hidden') && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40))`, &wide)
	if len(wide) > 0 {
		b.t.Errorf("wider than the window: %q", wide[:min(len(wide), 5)])
	}
}

// Every view of the agent.
func TestAgentConsole(t *testing.T) {
	b := openBrowser(t)
	bed := newBed(t)
	bed.traffic()
	url := bed.agents[0].URL + "/"
	b.open(url, desk[0], desk[1], "light")
	b.has("heading", "Pools")
	b.has("image", "Hit rate by tier (% of the blocks of lookups), now: ")
	b.has("rowheader", simulated)
	b.has("meter", "host slots used")
	b.has("meter", "disk slots used")
	b.minutes(bed.agents[0].Endpoint)
	b.shot("agent-light")
	b.press("2", "2")
	b.has("heading", "Connectors")
	b.has("image", "Wait for the disk (blocks), now: ")
	b.press("3", "3")
	b.has("heading", "Streams")
	b.has("rowheader", "worker ")
	b.open(url, phone[0], phone[1], "dark")
	b.has("heading", "Pools")
	b.fits()
	b.shot("agent-phone")
	b.calm()
}

// A listener with tokens serves the page, which asks for the token and shows nothing without it.
// Theme, pause and help work by keyboard.
func TestTokenAndKeys(t *testing.T) {
	const token = "0123456789abcdef0123"
	b := openBrowser(t)
	bed := newBed(t, "--control-token-file="+tokenFile(t, token))
	b.open(bed.router.Control.URL+"/", desk[0], desk[1], "light")
	b.has("dialog", "Token")
	var workers int
	b.eval(`document.querySelectorAll('.card').length`, &workers)
	if workers > 0 {
		t.Errorf("%d workers are shown without a token", workers)
	}
	b.write(token)
	b.press("Enter", "\r")
	b.has("group", "Worker 1/0")

	b.press("t", "t")
	b.has("button", "Theme: dark")
	var ground string
	b.eval(`getComputedStyle(document.body).backgroundColor`, &ground)
	if ground != "rgb(15, 19, 24)" {
		t.Errorf("the dark theme has the ground %s", ground)
	}
	b.press("p", "p")
	b.has("button", "Resume")
	b.press("?", "?")
	b.has("dialog", "Keys")
	b.press("Escape", "")
	bed.until("the dialog is closed", func() (closed bool, _ error) {
		b.eval(`!document.querySelector('dialog[open]')`, &closed)
		return closed, nil
	})
	b.press("4", "4")
	b.has("heading", "Publishers")
	// The first requests were refused, which the browser reports.
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.messages {
		if !strings.Contains(m, "401") {
			t.Errorf("the browser reports: %s", m)
		}
	}
}
