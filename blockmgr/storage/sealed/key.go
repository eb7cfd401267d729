package sealed

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// KeyBytes is the size of a key.
const KeyBytes = 32

const (
	// commandTime bounds how long a command for a key may take, commandEnd how long its output is read
	// after its end.
	commandTime = 30 * time.Second
	commandEnd  = time.Second
	// maxKeyText bounds the text of a key, maxComplaint what an error repeats of a command's complaint.
	maxKeyText   = 1024
	maxComplaint = 512
)

// Key is the key of a disk tier. Every text form of it names its source alone.
type Key struct {
	bytes [KeyBytes]byte
	from  string
}

// String says where the key is from.
func (k Key) String() string { return "key from " + k.from }

// Format implements fmt.Formatter: no verb shows the bytes.
func (k Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, k.String()) } // fmt reports errors of its writer

// ParseKey reads a key from 32 raw bytes, 64 hexadecimal digits, or base64. It ignores white space around the
// last two. 32 hexadecimal digits are an error: they are half a key. from names the source in errors and logs.
// No error repeats the text.
func ParseKey(text []byte, from string) (*Key, error) {
	raw, trimmed := text, strings.TrimSpace(string(text))
	digits, err := hex.DecodeString(trimmed)
	switch {
	case err == nil && len(trimmed) == KeyBytes:
		return nil, errors.New("key of 32 hexadecimal digits, which are 16 bytes: want 64, as openssl rand -hex 32 makes them")
	case len(text) == KeyBytes:
		err = nil
	case len(trimmed) == hex.EncodedLen(KeyBytes):
		raw = digits
	default:
		raw, err = base64.RawStdEncoding.DecodeString(strings.TrimRight(trimmed, "="))
	}
	if err != nil || len(raw) != KeyBytes {
		return nil, fmt.Errorf("key of %d bytes: want 32 bytes, 64 hexadecimal digits, or 44 characters of base64", len(text))
	}
	k := &Key{bytes: [KeyBytes]byte(raw), from: from}
	if k.bytes == [KeyBytes]byte{} {
		return nil, errors.New("key of zeros: want a random one, as openssl rand -hex 32 makes it")
	}
	return k, nil
}

// Source says where a key is from: the file or the command. The zero value is no key.
type Source struct {
	// File has the key; see ParseKey. Other users must have no rights to the file, its group at most the
	// right to read.
	File string
	// Command is run by /bin/sh and writes the key to its standard output within 30 s. Load kills what is left
	// of its process group.
	Command string
}

// Given reports whether there is a key.
func (s Source) Given() bool { return s != Source{} }

// Validate returns an error for a source with both fields.
func (s Source) Validate() error {
	if s.File != "" && s.Command != "" {
		return fmt.Errorf("disk key from file %q and from a command: want one of them", s.File)
	}
	return nil
}

// Load returns the key, nil without a source.
func (s Source) Load(ctx context.Context) (*Key, error) {
	switch {
	case s.File != "":
		key, err := loadFile(s.File)
		if err != nil {
			return nil, fmt.Errorf("disk key file %s: %w", s.File, err)
		}
		return key, nil
	case s.Command != "":
		key, err := runCommand(ctx, s.Command)
		if err != nil {
			return nil, fmt.Errorf("disk key command: %w", err)
		}
		return key, nil
	}
	return nil, nil
}

func loadFile(path string) (*Key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO does not wait for its writer
	if err != nil {
		return nil, errors.Unwrap(err) // the caller names the file
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	mode := st.Mode()
	if !mode.IsRegular() {
		return nil, fmt.Errorf("mode %v: want a regular file", mode)
	}
	if mode.Perm()&0o037 != 0 {
		return nil, fmt.Errorf("mode %v: want no rights for other users and no write right for the group (chmod 600)", mode)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyText))
	if err != nil {
		return nil, err
	}
	return ParseKey(text, path)
}

// runCommand returns the key that a command writes to its standard output.
func runCommand(ctx context.Context, command string) (*Key, error) {
	limited, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(limited, "/bin/sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the end is that of its children, too
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = commandEnd
	text, complaint := &capped{limit: maxKeyText}, &capped{limit: maxComplaint}
	cmd.Stdout, cmd.Stderr = text, complaint
	err := cmd.Run()
	if cmd.Process != nil { // children that the command has left; ESRCH where there are none
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("the agent was stopped before the command wrote a key: %w", ctx.Err())
	case limited.Err() != nil:
		err = fmt.Errorf("no key within %v: %w", commandTime, limited.Err())
	case errors.Is(err, exec.ErrWaitDelay):
		err = fmt.Errorf("a child process keeps the command's output open %v after its end: %w", commandEnd, err)
	}
	if said := strings.TrimSpace(string(complaint.kept)); err != nil && said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	if err != nil {
		return nil, err
	}
	return ParseKey(text.kept, "command")
}

// capped keeps the first bytes that are written, one more than limit.
type capped struct {
	kept  []byte
	limit int
}

// Write implements io.Writer. It never fails, so that a command that writes too much ends as it would.
func (c *capped) Write(p []byte) (int, error) {
	c.kept = append(c.kept, p[:min(len(p), c.limit+1-len(c.kept))]...)
	return len(p), nil
}
