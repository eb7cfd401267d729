package control

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/reload"
)

const (
	// minToken is the least length of a token in bytes.
	minToken = 16
	// maxTokens bounds the tokens of a file, and maxTokenFile its bytes.
	maxTokens, maxTokenFile = 256, 64 << 10
)

// Tokens are the named tokens of operators. A caller sends one as "Authorization: Bearer TOKEN".
type Tokens struct {
	file *reload.Files[*tokenTable]
}

// tokenTable is the content of a file of tokens.
type tokenTable struct {
	// names has the name of each token by the token's digest. Looking up a digest tells nothing
	// about the token by the time that it takes.
	names map[[sha256.Size]byte]string
	first string
}

// ReadTokens reads a file of tokens. Each line is NAME TOKEN. Empty lines and lines that begin with
// # are skipped. The file is read again when it changes. A file that has become bad is logged, and the
// tokens of before stay. The errors name the line and show no token. An empty path returns nil. log may
// be nil.
func ReadTokens(path string, log *zap.Logger) (*Tokens, error) {
	if path == "" {
		return nil, nil
	}
	if log == nil {
		log = zap.NewNop()
	}
	parse := func(contents [][]byte) (*tokenTable, error) { return parseTokens(path, contents[0]) }
	file, err := reload.Open([]string{path}, parse, func(err error) {
		log.Error("tokens file is not applied; the tokens of before stay", zap.Error(err))
	})
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	return &Tokens{file: file}, nil
}

// parseTokens reads the text of a file of tokens.
func parseTokens(path string, text []byte) (*tokenTable, error) {
	if len(text) > maxTokenFile {
		return nil, fmt.Errorf("%s: %d bytes, limit %d", path, len(text), maxTokenFile)
	}
	t := &tokenTable{names: make(map[[sha256.Size]byte]string)}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if err := t.add(strings.Fields(line)); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
	}
	if len(t.names) == 0 {
		return nil, fmt.Errorf("%s: no token, want lines NAME TOKEN", path)
	}
	return t, nil
}

// add adds the token of a line with fields.
func (t *tokenTable) add(fields []string) error {
	if len(fields) != 2 {
		return fmt.Errorf("%d words, want NAME TOKEN", len(fields))
	}
	name, token := fields[0], fields[1]
	digest := sha256.Sum256([]byte(token))
	switch other, given := t.names[digest]; {
	case len(token) < minToken:
		return fmt.Errorf("token of %.64q: %d bytes, want at least %d", name, len(token), minToken)
	case given:
		return fmt.Errorf("token of %.64q: %.64q has the same", name, other)
	case len(t.names) == maxTokens:
		return fmt.Errorf("more than %d tokens", maxTokens)
	}
	if t.first == "" {
		t.first = token
	}
	t.names[digest] = name
	return nil
}

// First returns the token of the first line, for a client to send. It is empty for nil.
func (t *Tokens) First() string {
	if t == nil {
		return ""
	}
	return t.file.Get().first
}

var errToken = errors.New(`header Authorization: want "Bearer TOKEN" with a token of --control-token-file`)

// require returns a handler that answers 401 to requests without a token, and passes the others to
// h. A nil Tokens passes all.
func (t *Tokens) require(h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		name, ok := t.file.Get().names[sha256.Sum256([]byte(token))]
		if !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, errToken.Error())
			return
		}
		if c, ok := r.Context().Value(callKey{}).(*call); ok {
			c.token = name
		}
		h.ServeHTTP(w, r)
	})
}
