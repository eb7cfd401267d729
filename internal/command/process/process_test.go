package process

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap/zapcore"
)

func TestLogLevelIsReadFromTheEnvironment(t *testing.T) {
	for name, want := range map[string]zapcore.Level{
		"": zapcore.InfoLevel, "debug": zapcore.DebugLevel, "info": zapcore.InfoLevel, "warn": zapcore.WarnLevel, "error": zapcore.ErrorLevel,
	} {
		t.Setenv(logLevelVariable, name)
		log, err := NewLogger("test")
		if err != nil {
			t.Errorf("level %q: %v", name, err)
			continue
		}
		if log.Level() != want || log.Name() != "test" {
			t.Errorf("level %q: logger %q at %s, want \"test\" at %s", name, log.Name(), log.Level(), want)
		}
	}
}

func TestBadLogLevelIsAnErrorThatNamesIt(t *testing.T) {
	for _, name := range []string{"loud", "fatal", "panic", "9"} {
		t.Setenv(logLevelVariable, name)
		_, err := NewLogger("test")
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), logLevelVariable) {
			t.Errorf("level %q: error %v, want one that names variable and value", name, err)
		}
	}
}

func TestSignalEndsTheContext(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if signal.Ignored(sig) { // under nohup, or in the background of a script
			continue
		}
		ctx, _, stop := SignalContext()
		if err := syscall.Kill(syscall.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-t.Context().Done():
			t.Fatalf("the context outlived %v", sig)
		}
		if ctx.Err() != context.Canceled {
			t.Errorf("context ended with %v, want %v", ctx.Err(), context.Canceled)
		}
		stop()
	}
}

// TestIgnoredHangupStaysIgnored: a process under nohup outlives its terminal.
func TestIgnoredHangupStaysIgnored(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	ctx, _, stop := SignalContext()
	defer stop()
	if !signal.Ignored(syscall.SIGHUP) {
		t.Error("SIGHUP is not ignored any more")
	}
	if ctx.Err() != nil {
		t.Errorf("context ended: %v", ctx.Err())
	}
}

func TestNullDeviceIsNoTerminal(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if IsTerminal(null) {
		t.Errorf("%s is a terminal", os.DevNull)
	}
	// A new pseudo-terminal's controlling side answers as a terminal does.
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminal to look at: %v", err)
	}
	defer terminal.Close()
	if !IsTerminal(terminal) {
		t.Error("a terminal is none")
	}
}

// TestSIGHUPReloadsOrEnds: SIGHUP ends a command that does not reload. A command that reloads gets
// the SIGHUP, unless the process's terminal has closed.
func TestSIGHUPReloadsOrEnds(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for what, c := range map[string]struct {
		taken     bool
		terminals []*os.File // at the start; null is none now
		ends      bool
	}{
		"not taken":       {false, nil, true},
		"taken":           {true, nil, false},
		"terminal closed": {true, []*os.File{null}, true},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h := &Hangups{signals: make(chan os.Signal, 1), reload: make(chan struct{}, 1), terminals: c.terminals}
		if c.taken {
			h.Take()
		}
		go h.run(ctx, cancel)
		h.signals <- syscall.SIGHUP
		select {
		case <-ctx.Done():
			if !c.ends {
				t.Errorf("%s: the context has ended", what)
			}
		case <-h.reload:
			if c.ends {
				t.Errorf("%s: a reload is due", what)
			}
		}
	}
}
