package sealed

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// FileName is the name of the file in an arena's directory that says with which key the arena is written.
const FileName = "slots.key"

// ErrKey means that an arena was written with another key, or with none. Nothing has changed.
var ErrKey = errors.New("the key does not fit")

const (
	fileMagic   = "BYARDKEY"
	fileVersion = 1
	fileBytes   = 84
	saltStart   = 16
	checkStart  = 48
	crcStart    = 80
	sumBytes    = 32

	checkInfo  = "blockyard disk key check"
	extentInfo = "blockyard disk extent"
)

// Arena derives the keys of the extents of one arena.
type Arena struct {
	// secret is what HKDF extracts from the key and the arena's salt.
	secret []byte
}

// Check returns ErrKey unless the arena in a directory was written with the key, or without one if key is
// nil. A directory without slots.key was written without one.
func Check(dir string, key *Key) error {
	_, err := read(dir, key)
	return err
}

// Open returns the arena's keys, and writes slots.key first where there is none. The caller has found with
// Check that the file fits, and has locked the arena. ErrKey is that of Check.
func Open(dir string, key *Key) (*Arena, error) {
	if _, err := os.Stat(path(dir)); errors.Is(err, os.ErrNotExist) {
		if err := write(dir, key); err != nil {
			return nil, err
		}
	}
	secret, err := read(dir, key)
	if err != nil {
		return nil, err
	}
	return &Arena{secret: secret}, nil
}

// Remove removes slots.key. What is written in the arena cannot be read any more.
func Remove(dir string) error {
	if err := os.Remove(path(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("key of the disk tier: %w", err)
	}
	return nil
}

func path(dir string) string { return filepath.Join(dir, FileName) }

// refused returns an ErrKey with the way out.
func refused(dir, why string) error {
	return fmt.Errorf("%w: %s %s; start with the key that wrote the tier, or empty the tier with --disk-key-reset", ErrKey, path(dir), why)
}

// read returns the secret of key and slots.key, nil when both are absent. The file is little-endian:
//
//	magic[8] "BYARDKEY" @0 | version u32 @8 | zero u32 @12 | salt[32] @16 | check[32] @48 |
//	CRC32C of bytes 0..79 u32 @80
//
// check is derived from key and salt, and tells nothing of the key.
func read(dir string, key *Key) (secret []byte, err error) {
	b, err := os.ReadFile(path(dir))
	switch {
	case errors.Is(err, os.ErrNotExist) && key == nil:
		return nil, nil
	case errors.Is(err, os.ErrNotExist):
		return nil, refused(dir, "is absent: the tier is not encrypted")
	case err != nil:
		return nil, fmt.Errorf("key of the disk tier: %w", err)
	case key == nil:
		return nil, refused(dir, "shows that the tier is encrypted, but no key was given")
	}
	le := binary.LittleEndian
	if len(b) != fileBytes || string(b[:8]) != fileMagic || crc(b) != le.Uint32(b[crcStart:]) {
		return nil, refused(dir, "is damaged")
	}
	if version := le.Uint32(b[8:]); version != fileVersion {
		return nil, refused(dir, fmt.Sprintf("has version %d, want %d", version, fileVersion))
	}
	secret, check, err := derive(key, b[saltStart:checkStart])
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare(check, b[checkStart:crcStart]) == 0 {
		return nil, refused(dir, "was written with another key than the one from "+key.from)
	}
	return secret, nil
}

// derive returns what HKDF extracts from a key and a salt, and the check that slots.key has of both.
func derive(key *Key, salt []byte) (secret, check []byte, err error) {
	if secret, err = hkdf.Extract(sha256.New, key.bytes[:], salt); err == nil {
		check, err = hkdf.Expand(sha256.New, secret, checkInfo, sumBytes)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("key of the disk tier: %w", err)
	}
	return secret, check, nil
}

func crc(b []byte) uint32 { return crc32.Checksum(b[:crcStart], crc32.MakeTable(crc32.Castagnoli)) }

// write writes slots.key with a new salt. After a crash the whole file is there or none.
func write(dir string, key *Key) error {
	b := make([]byte, fileBytes)
	le := binary.LittleEndian
	copy(b, fileMagic)
	le.PutUint32(b[8:], fileVersion)
	rand.Read(b[saltStart:checkStart]) // never fails
	_, check, err := derive(key, b[saltStart:checkStart])
	if err != nil {
		return err
	}
	copy(b[checkStart:], check)
	le.PutUint32(b[crcStart:], crc(b))
	if err := writeSynced(path(dir), b); err != nil {
		return fmt.Errorf("key of the disk tier: %w", err)
	}
	return nil
}

// writeSynced replaces a file. Its bytes and its name are on stable storage afterwards.
func writeSynced(path string, b []byte) error {
	temporary := path + ".new"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
