package top

import (
	"context"
	"fmt"
	"time"

	"github.com/gdamore/tcell/v2"
)

// screenState holds the view and the scroll position that the user has chosen, and the last two samples.
type screenState struct {
	view        view
	top         int // lines scrolled
	before, now *sample
}

// show takes looks and draws them on the screen until ctx ends or the user presses q. It restores the
// terminal.
func (c *Command) show(ctx context.Context, screen tcell.Screen) error {
	if err := screen.Init(); err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	events, ended := make(chan tcell.Event), make(chan struct{})
	go func() { // ends with Fini
		defer close(ended)
		for ev := screen.PollEvent(); ev != nil; ev = screen.PollEvent() {
			select {
			case events <- ev:
			case <-ctx.Done():
				return
			}
		}
	}()
	looks, looked := make(chan *sample), make(chan struct{})
	go func() {
		defer close(looked)
		c.follow(ctx, looks)
	}()
	defer func() {
		stop()
		<-looked
		screen.Fini()
		<-ended
	}()
	var s screenState
	for {
		s.draw(screen)
		select {
		case <-ctx.Done():
			return nil
		case now := <-looks:
			s.before, s.now = s.now, now
		case ev := <-events:
			if key, ok := ev.(*tcell.EventKey); ok && s.press(key) {
				return nil
			}
			if _, ok := ev.(*tcell.EventResize); ok {
				screen.Sync()
			}
		}
	}
}

// follow sends a look every period until ctx ends.
func (c *Command) follow(ctx context.Context, looks chan<- *sample) {
	period := time.NewTicker(c.Every)
	defer period.Stop()
	for {
		select {
		case looks <- c.look(ctx):
		case <-ctx.Done():
			return
		}
		select {
		case <-period.C:
		case <-ctx.Done():
			return
		}
	}
}

// press changes the state by a key, and reports whether the key ends the command.
func (s *screenState) press(key *tcell.EventKey) (ends bool) {
	switch key.Key() {
	case tcell.KeyTab, tcell.KeyRight:
		s.view, s.top = (s.view+1)%numViews, 0
	case tcell.KeyBacktab, tcell.KeyLeft:
		s.view, s.top = (s.view+numViews-1)%numViews, 0
	case tcell.KeyDown:
		s.top++
	case tcell.KeyUp:
		s.top--
	case tcell.KeyPgDn:
		s.top += pageLines
	case tcell.KeyPgUp:
		s.top -= pageLines
	case tcell.KeyCtrlC, tcell.KeyEscape:
		return true
	case tcell.KeyRune:
		return key.Rune() == 'q'
	}
	return false
}

// pageLines is how far a page key scrolls.
const pageLines = 10

// draw shows the state. The last line has the keys.
func (s *screenState) draw(screen tcell.Screen) {
	width, height := screen.Size()
	screen.Clear()
	lines := []line{{text: "asking ..."}}
	if s.now != nil {
		lines = render(s.view, s.before, s.now, width)
	}
	s.top = max(0, min(s.top, len(lines)-(height-1)))
	for y := 0; y < height-1 && s.top+y < len(lines); y++ {
		put(screen, y, lines[s.top+y])
	}
	if height > 0 {
		put(screen, height-1, line{text: clip("tab/arrows: view, up/down: scroll, q: end", max(1, width))})
	}
	screen.Show()
}

// put writes a line of the screen.
func put(screen tcell.Screen, y int, l line) {
	style := tcell.StyleDefault.Bold(l.head)
	if l.problem {
		style = style.Foreground(tcell.ColorRed)
	}
	x := 0
	for _, r := range l.text {
		screen.SetContent(x, y, r, nil, style)
		x++
	}
}
