package tenant

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/reload"
)

// Errors of Client.
var (
	ErrNoKey = errors.New("no API key: want the header Authorization: Bearer KEY, or x-api-key")
	ErrKey   = errors.New("the API key is not known")
)

// Client is the holder of a key.
type Client struct {
	// Key is the name of the key, for logs.
	Key string
	// Tenant is "" without a keys file.
	Tenant string
	// Priority is the strict priority of the key's requests; a higher one is first.
	Priority uint32
	// Weight is the tenant's share of the workers beside other tenants of the same
	// priority.
	Weight int
	// Requests bounds the tenant's requests in progress; 0 is no bound.
	Requests int
	// Salted keeps the tenant's blocks apart from those of others.
	Salted bool
	// Rights are what a request may set that usually only the router sets.
	Rights
}

// Rights are what the requests of a key may set.
type Rights struct {
	// KVTransfer allows kv_transfer_params, Rank the header X-Data-Parallel-Rank, and Pin
	// the header X-Blockyard-Pin-Worker.
	KVTransfer, Rank, Pin bool
}

// everybody is a client without a keys file.
var everybody = Client{Weight: 1, Rights: Rights{Pin: true}}

// Keys are the keys of a file. The zero Keys accepts every client as the tenant "".
type Keys struct {
	file *reload.Files[*table]
}

// table is the content of a keys file.
type table struct {
	// pepper keys the index of clients, so that the time of a look-up says nothing about the
	// hashes.
	pepper  []byte
	clients map[[sha256.Size]byte]*entry
}

// entry is a key of the file.
type entry struct {
	hash   [sha256.Size]byte
	client Client
}

// Open reads a keys file.
func Open(path string, log *zap.Logger) (*Keys, error) {
	parse := func(contents [][]byte) (*table, error) { return parseTable(path, contents[0]) }
	file, err := reload.Open([]string{path}, parse, func(err error) {
		log.Error("keys file is not applied; the keys of before stay", zap.Error(err))
	})
	if err != nil {
		return nil, err
	}
	return &Keys{file: file}, nil
}

// Client returns the client that a request's headers name. The error is ErrNoKey or ErrKey.
// Without a keys file the headers are not read.
func (k *Keys) Client(h http.Header) (*Client, error) {
	if k == nil || k.file == nil {
		return &everybody, nil
	}
	key, ok := keyOf(h)
	if !ok {
		return nil, ErrNoKey
	}
	t := k.file.Get()
	hash := sha256.Sum256([]byte(key))
	e := t.clients[t.index(hash)]
	if e == nil || subtle.ConstantTimeCompare(e.hash[:], hash[:]) != 1 {
		return nil, ErrKey
	}
	return &e.client, nil
}

// keyOf returns the key of a request: the bearer token, else x-api-key.
func keyOf(h http.Header) (string, bool) {
	if scheme, token, _ := strings.Cut(h.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		if token = strings.TrimSpace(token); token != "" {
			return token, true
		}
	}
	key := h.Get("X-Api-Key")
	return key, key != ""
}

func newTable() *table {
	t := &table{pepper: make([]byte, sha256.Size), clients: make(map[[sha256.Size]byte]*entry)}
	_, _ = rand.Read(t.pepper) // never fails
	return t
}

// index returns where the client with a hash is.
func (t *table) index(hash [sha256.Size]byte) (at [sha256.Size]byte) {
	m := hmac.New(sha256.New, t.pepper)
	m.Write(hash[:])
	m.Sum(at[:0])
	return at
}

// saltPrefix begins the salts of salted tenants. vLLM refuses a salt with "/", "@", a backslash
// or NUL, and one of more than maxSalt characters.
const (
	saltPrefix = "blockyard-tenant:"
	maxSalt    = 128
)

// ErrSalt refuses a salt that could be another tenant's.
var ErrSalt = errors.New("a salt that does not begin with " + saltPrefix)

// Salt returns the cache salt of a request in which the client set the salt own; "" is
// none. The error is ErrSalt.
func (c *Client) Salt(own string) (string, error) {
	switch {
	case c.Salted:
		salt := saltPrefix + c.Tenant + ":" + own
		if utf8.RuneCountInString(salt) > maxSalt {
			// A tenant's name has neither ":" nor "#", so that no other salt is equal.
			digest := sha256.Sum256([]byte(own))
			salt = saltPrefix + c.Tenant + "#" + base64.RawURLEncoding.EncodeToString(digest[:])
		}
		return salt, nil
	case strings.HasPrefix(own, saltPrefix):
		return "", ErrSalt
	}
	return own, nil
}
