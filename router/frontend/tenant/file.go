package tenant

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/strictjson"
)

const (
	// maxKeys bounds the keys of a file.
	maxKeys = 65536
	// maxWeight and maxTenantRequests bound members of a line.
	maxWeight         = 1000
	maxTenantRequests = 1 << 20
)

// line is one line of a keys file.
type line struct {
	Name     string   `json:"name"`
	SHA256   string   `json:"sha256"`
	Tenant   string   `json:"tenant"`
	Weight   *uint32  `json:"weight"`
	Priority uint32   `json:"priority"`
	Requests uint32   `json:"requests"`
	Salt     bool     `json:"salt"`
	Allow    []string `json:"allow"`
}

// nameForm is the form of tenants and of names of keys. It has no slash, which ends the
// tenant in a salt.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// parseTable parses a keys file. The error names the file, the line and the member.
func parseTable(path string, data []byte) (*table, error) {
	t := newTable()
	tenants := make(map[string]*Client)
	number := 0
	for text := range bytes.Lines(data) {
		number++
		text = bytes.TrimSpace(text)
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		if err := t.add(text, tenants); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, number, err)
		}
	}
	if len(t.clients) == 0 {
		return nil, fmt.Errorf("%s: no key: want one JSON object on each line", path)
	}
	return t, nil
}

// add adds the key of a line. tenants has the first key of each tenant.
func (t *table) add(text []byte, tenants map[string]*Client) error {
	var l line
	if err := strictjson.Decode(bytes.NewReader(text), &l, "object", nil); err != nil {
		return err
	}
	e, err := l.entry()
	if err != nil {
		return err
	}
	at := t.index(e.hash)
	if twin := t.clients[at]; twin != nil {
		return fmt.Errorf("sha256: the key %q has the same", twin.client.Key)
	}
	if len(t.clients) == maxKeys {
		return fmt.Errorf("more than %d keys", maxKeys)
	}
	first, c := tenants[l.Tenant], &e.client
	switch {
	case first == nil:
		tenants[l.Tenant] = c
	case first.Weight != c.Weight:
		return fmt.Errorf("weight: %d, but the key %q of the same tenant has %d", c.Weight, first.Key, first.Weight)
	case first.Requests != c.Requests:
		return fmt.Errorf("requests: %d, but the key %q of the same tenant has %d", c.Requests, first.Key, first.Requests)
	case first.Salted != c.Salted:
		return fmt.Errorf("salt: %t, but the key %q of the same tenant has %t", c.Salted, first.Key, first.Salted)
	}
	t.clients[at] = e
	return nil
}

// entry checks a line.
func (l *line) entry() (*entry, error) {
	e := &entry{client: Client{Key: l.Name, Tenant: l.Tenant, Priority: l.Priority, Weight: 1, Requests: int(l.Requests), Salted: l.Salt}}
	if !nameForm.MatchString(l.Tenant) {
		return nil, fmt.Errorf("tenant: %.80q: want 1 to 64 letters, digits, '.', '_' or '-'", l.Tenant)
	}
	if l.Name == "" {
		e.client.Key = l.Tenant
	} else if !nameForm.MatchString(l.Name) {
		return nil, fmt.Errorf("name: %.80q: want 1 to 64 letters, digits, '.', '_' or '-'", l.Name)
	}
	hash, err := hex.DecodeString(l.SHA256)
	if err != nil || len(hash) != sha256.Size {
		// The value is not shown: it may be a key.
		return nil, errors.New("sha256: want the SHA-256 of the key in 64 hexadecimal digits")
	}
	copy(e.hash[:], hash)
	if l.Weight != nil {
		if *l.Weight < 1 || *l.Weight > maxWeight {
			return nil, fmt.Errorf("weight: %d is not in 1..%d", *l.Weight, maxWeight)
		}
		e.client.Weight = int(*l.Weight)
	}
	if l.Requests > maxTenantRequests {
		return nil, fmt.Errorf("requests: %d is not in 0..%d", l.Requests, maxTenantRequests)
	}
	rights := map[string]*bool{
		"kv_transfer_params": &e.client.KVTransfer, "rank": &e.client.Rank, "pin": &e.client.Pin,
	}
	for i, name := range l.Allow {
		right := rights[name]
		if right == nil {
			return nil, fmt.Errorf("allow[%d]: %.80q: want kv_transfer_params, rank or pin", i, name)
		}
		if slices.Index(l.Allow, name) < i {
			return nil, fmt.Errorf("allow[%d]: %q occurs twice", i, name)
		}
		*right = true
	}
	return e, nil
}
