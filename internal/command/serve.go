package command

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// logLevelVariable names the environment variable that NewLogger reads.
const logLevelVariable = "BLOCKYARD_LOG_LEVEL"

// signalContext returns a context that ends at the first SIGINT, SIGTERM or SIGHUP:
// a terminal that closes stops a process as orderly as a supervisor does. Under
// nohup SIGHUP stays ignored. After the first signal signals have their default
// effect again, so that a second one kills a process that is slow to drain. The
// caller must call the returned function when it is done.
func signalContext() (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// NewLogger returns a logger named name that writes to standard error: lines
// for people when that is a terminal, JSON otherwise.
func NewLogger(name string) (*zap.Logger, error) {
	level, err := logLevel(os.Getenv(logLevelVariable))
	if err != nil {
		return nil, err
	}
	core := zapcore.NewCore(logEncoder(IsTerminal(os.Stderr)), zapcore.Lock(os.Stderr), level)
	return zap.New(core).Named(name), nil
}

// logLevel reads a level's name; empty is info.
func logLevel(name string) (zapcore.Level, error) {
	if name == "" {
		return zapcore.InfoLevel, nil
	}
	level, err := zapcore.ParseLevel(name)
	if err != nil || level > zapcore.ErrorLevel {
		return 0, fmt.Errorf("%s %q: want debug, info, warn or error", logLevelVariable, name)
	}
	return level, nil
}

func logEncoder(people bool) zapcore.Encoder {
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime = zapcore.ISO8601TimeEncoder
	c.EncodeDuration = zapcore.StringDurationEncoder
	if people {
		c.EncodeLevel = zapcore.CapitalLevelEncoder
		return zapcore.NewConsoleEncoder(c)
	}
	return zapcore.NewJSONEncoder(c)
}

// IsTerminal reports whether f is a terminal; other character devices, such as
// /dev/null, are not.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// WriteReady writes v as one line of JSON to standard output. A subcommand
// calls it once, when it serves; whoever started it waits for that line.
func WriteReady(v any) error {
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		return fmt.Errorf("ready line: %w", err)
	}
	return nil
}
