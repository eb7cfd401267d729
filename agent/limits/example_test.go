package limits_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/agent/limits"
)

func Example() {
	l, err := limits.Parse([]byte("models: {llama: {host: 32MiB}}\ntenants: {acme: {disk: 1GiB, ttl: 24h}}\n"))
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Models["llama"].HostBytes, l.Tenants[0].Name, l.Tenants[0].DiskBytes, l.Tenants[0].TTL)
	_, err = limits.Parse([]byte("tenants: {acme: {ttl: 1ms}}\n"))
	fmt.Println(err)
	// Output:
	// 33554432 acme 1073741824 24h0m0s
	// tenant "acme": time to live 1ms: want 0 (for ever) or 1s to 8760h0m0s
}
