package tenant_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/frontend/tenant"
)

func Example() {
	dir, err := os.MkdirTemp("", "keys")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	path := filepath.Join(dir, "keys.jsonl")
	line := fmt.Sprintf(`{"tenant":"research","salt":true,"sha256":"%x"}`, sha256.Sum256([]byte("key")))
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		panic(err)
	}
	keys, err := tenant.Open(path, zap.NewNop())
	if err != nil {
		panic(err)
	}
	client, err := keys.Client(http.Header{"Authorization": {"Bearer key"}})
	if err != nil {
		panic(err)
	}
	salt, err := client.Salt("own")
	fmt.Println(client.Tenant, salt, err)
	_, err = keys.Client(http.Header{})
	fmt.Println(err)
	// Output:
	// research blockyard-tenant:research:own <nil>
	// no API key: want the header Authorization: Bearer KEY, or x-api-key
}
