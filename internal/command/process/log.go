package process

import (
	"encoding/json"
	"fmt"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// logLevelVariable names the environment variable that NewLogger reads.
const logLevelVariable = "BLOCKYARD_LOG_LEVEL"

// Level is the value of a flag --log-level.
type Level struct{ zapcore.Level }

// UnmarshalText implements encoding.TextUnmarshaler: debug, info, warn or error. Empty is info.
func (l *Level) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		l.Level = zapcore.InfoLevel
		return nil
	}
	parsed, err := zapcore.ParseLevel(string(text))
	if err != nil || parsed > zapcore.ErrorLevel {
		return fmt.Errorf("%q: want debug, info, warn or error", text)
	}
	l.Level = parsed
	return nil
}

// NewLogger returns a logger named name that writes to standard error: lines for people when that is a
// terminal, JSON otherwise. The error says that BLOCKYARD_LOG_LEVEL is no level.
func NewLogger(name string) (*zap.Logger, error) {
	var l Level
	if err := l.UnmarshalText([]byte(os.Getenv(logLevelVariable))); err != nil {
		return nil, fmt.Errorf("%s %w", logLevelVariable, err)
	}
	return LoggerFrom(name, l), nil
}

// LoggerFrom returns a logger of NewLogger's form that logs from a level on.
func LoggerFrom(name string, from zapcore.LevelEnabler) *zap.Logger {
	core := zapcore.NewCore(logEncoder(IsTerminal(os.Stderr)), zapcore.Lock(os.Stderr), from)
	return zap.New(core).Named(name)
}

// logEncoder returns the encoder of log lines: text for people when people is true, and
// else JSON.
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
// calls it once, when it serves; the parent process waits for that line.
func WriteReady(v any) error {
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		return fmt.Errorf("ready line: %w", err)
	}
	return nil
}
