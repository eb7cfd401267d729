package source

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestRankEndpoint(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		rank     kv.DPRank
		want     string
	}{
		{"tcp://a:5557", 0, "tcp://a:5557"},
		{"tcp://a:5557", 3, "tcp://a:5560"},
		{"tcp://*:5557", 1, "tcp://*:5558"},
		{"tcp://[::1]:5557", 1, "tcp://[::1]:5558"},
		{"", 4, ""},
		{"ipc:///a", 0, "ipc:///a"},
		{"ipc:///a", 1, "error"},
		{"tcp://a:65535", 1, "error"},
		{"tcp://a:0", 1, "error"},
		{"tcp://a", 1, "error"},
	} {
		got, err := RankEndpoint(c.endpoint, c.rank)
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%q of rank %d: %q, want %q (%v)", c.endpoint, c.rank, got, c.want, err)
		}
	}
}

func TestCheckEndpoint(t *testing.T) {
	for endpoint, ok := range map[string]bool{
		"tcp://a:1": true, "ipc:///tmp/x": true, "tcp://[::1]:5557": true,
		"": false, "ipc://": false, "tcp://:5557": false, "tcp://a:65536": false, "tcp://a:x": false, "inproc://a": false, "a:5557": false,
	} {
		if err := CheckEndpoint(endpoint); (err == nil) != ok {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
}
