package source

import "testing"

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
