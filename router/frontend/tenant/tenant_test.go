package tenant_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/router/frontend/tenant"
)

// line returns the line of a key in a keys file.
func line(key, members string) string {
	return fmt.Sprintf(`{"sha256":"%x",%s}`, sha256.Sum256([]byte(key)), members)
}

func write(t *testing.T, path string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
}

func header(name, value string) http.Header { return http.Header{name: {value}} }

func TestClient(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write(t, path, "# keys of the test", "",
		line("secret", `"tenant":"a","name":"ci","weight":3,"priority":2,"requests":5,"salt":true,"allow":["pin","rank","kv_transfer_params"]`),
		line("other", `"tenant":"b"`))
	keys, err := tenant.Open(path, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	full := tenant.Client{Key: "ci", Tenant: "a", Weight: 3, Priority: 2, Requests: 5, Salted: true, Rights: tenant.Rights{KVTransfer: true, Rank: true, Pin: true}}
	plain := tenant.Client{Key: "b", Tenant: "b", Weight: 1}
	for name, c := range map[string]struct {
		header http.Header
		want   tenant.Client
		err    error
	}{
		"bearer":          {header("Authorization", "Bearer secret"), full, nil},
		"bearer, lower":   {header("Authorization", "bearer  secret"), full, nil},
		"anthropic":       {header("X-Api-Key", "other"), plain, nil},
		"both":            {http.Header{"Authorization": {"Bearer other"}, "X-Api-Key": {"secret"}}, plain, nil},
		"basic and key":   {http.Header{"Authorization": {"Basic other"}, "X-Api-Key": {"secret"}}, full, nil},
		"none":            {http.Header{}, tenant.Client{}, tenant.ErrNoKey},
		"empty bearer":    {header("Authorization", "Bearer "), tenant.Client{}, tenant.ErrNoKey},
		"unknown":         {header("Authorization", "Bearer secrets"), tenant.Client{}, tenant.ErrKey},
		"the hash itself": {header("X-Api-Key", fmt.Sprintf("%x", sha256.Sum256([]byte("secret")))), tenant.Client{}, tenant.ErrKey},
	} {
		got, err := keys.Client(c.header)
		if !errors.Is(err, c.err) || err == nil && *got != c.want {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, got, err, c.want, c.err)
		}
	}
}

// Without a keys file every client is the tenant "".
func TestEverybody(t *testing.T) {
	var keys *tenant.Keys
	c, err := keys.Client(header("Authorization", "Bearer anything"))
	if err != nil || c.Tenant != "" || c.Weight != 1 || c.KVTransfer || c.Rank || !c.Pin {
		t.Errorf("client %+v, %v", c, err)
	}
}

func TestErrorsNameLineAndMember(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	good := line("secret", `"tenant":"a","weight":2`)
	for text, want := range map[string]string{
		"":                                                "no key",
		`{"tenant":"b"}`:                                  "line 2: sha256: want",
		`{"tenant":"b","sha256":"secret"}`:                "line 2: sha256: want",
		line("x", `"tenant":"a/b"`):                       "line 2: tenant",
		line("x", `"tenant":""`):                          "line 2: tenant",
		line("x", `"tenant":"b","name":"a b"`):            "line 2: name",
		line("x", `"tenant":"b","weight":0`):              "line 2: weight: 0",
		line("x", `"tenant":"b","weight":-1`):             "line 2: weight",
		line("x", `"tenant":"b","requests":9999999`):      "line 2: requests",
		line("x", `"tenant":"b","allow":["root"]`):        `line 2: allow[0]: "root"`,
		line("x", `"tenant":"b","allow":["pin","pin"]`):   "line 2: allow[1]",
		line("x", `"tenant":"b","color":1`):               `line 2: unknown field "color"`,
		line("x", `"tenant":"a"`):                         "line 2: weight: 1, but",
		line("x", `"tenant":"a","weight":2,"salt":true`):  "line 2: salt: true, but",
		line("x", `"tenant":"a","weight":2,"requests":1`): "line 2: requests: 1, but",
		good: "line 2: sha256: the key",
		"x":  "line 2: ",
	} {
		lines := []string{good, text}
		if text == "" {
			lines = nil
		}
		write(t, path, lines...)
		_, err := tenant.Open(path, zap.NewNop())
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %v shows a key", text, err)
		}
	}
}

// A changed file is applied. A bad file keeps the keys of before and is logged once.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "keys")
		write(t, path, line("old", `"tenant":"a"`))
		core, logs := observer.New(zap.ErrorLevel)
		keys, err := tenant.Open(path, zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		expect := func(key string, want error) {
			t.Helper()
			time.Sleep(2 * time.Second)
			if _, err := keys.Client(header("X-Api-Key", key)); !errors.Is(err, want) {
				t.Errorf("%s: error %v, want %v", key, err, want)
			}
		}
		write(t, path, line("old", `"tenant":"a"`), "{")
		expect("old", nil)
		expect("old", nil)
		if logs.Len() != 1 {
			t.Errorf("%d errors are logged, want 1", logs.Len())
		}
		write(t, path, line("new", `"tenant":"a"`))
		expect("new", nil)
		expect("old", tenant.ErrKey)
	})
}

// The salts of all tenants differ, and vLLM accepts each of them.
func TestSalt(t *testing.T) {
	salted, plain := &tenant.Client{Tenant: "a", Salted: true}, &tenant.Client{Tenant: "b"}
	other := &tenant.Client{Tenant: "a.b", Salted: true}
	longest := &tenant.Client{Tenant: strings.Repeat("t", 64), Salted: true}
	seen := make(map[string]string)
	for _, c := range []*tenant.Client{salted, other, longest, plain} {
		for _, own := range []string{"", "x", "a:x", "b:", ":", "#", strings.Repeat("x", 128), strings.Repeat("é", 46), strings.Repeat("é", 47)} {
			salt, err := c.Salt(own)
			if err != nil {
				t.Fatal(err)
			}
			if len([]rune(salt)) > 128 || strings.ContainsAny(salt, "@/\\\x00") {
				t.Errorf("tenant %s with %q: vLLM refuses the salt %q", c.Tenant, own, salt)
			}
			if twin, ok := seen[salt]; ok {
				t.Errorf("tenant %s with %q has the salt of %s", c.Tenant, own, twin)
			}
			seen[salt] = c.Tenant + " with " + own
		}
	}
	theirs, _ := salted.Salt("x")
	if got, err := plain.Salt(theirs); !errors.Is(err, tenant.ErrSalt) {
		t.Errorf("salt %q, %v: the salt of another tenant is taken", got, err)
	}
	if again, _ := other.Salt(theirs); again == theirs {
		t.Error("a salted tenant has the salt of another")
	}
}
