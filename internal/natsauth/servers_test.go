package natsauth

import (
	"strings"
	"testing"
)

// TestServersAreChecked: what the NATS client does not understand is refused before it
// shows it, and no error shows a password.
func TestServersAreChecked(t *testing.T) {
	for _, good := range []string{
		"nats://127.0.0.1:4222", "tls://host", "nats://user:pw@host:1, nats://[::1]:4222", "nats://token@host",
		"nats://u:p%40ss@host", "nats://u:p@ss@host:65535", "tls://host/",
	} {
		if err := CheckServers(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for bad, server := range map[string]string{
		"": "server 1", "host:4222": "server 1", "http://host": "server 1", "nats://": "server 1", "nats://:4222": "server 1",
		"nats://host,": "server 2", "nats://host,nats://u:hunter2@ho st": "server 2", "nats://a,nats://b,kafka://u:hunter2@c": "server 3",
		"nats://u:hunter2%zz@host": "server 1", "nats://u:hun/ter2@host": "server 1", "nats://u:hunter2#@host": "server 1",
		"nats://u:hunter2@host:65536": "port", "nats://u:hunter2@host:0": "port", "nats://u:hunter2@host:": "port",
		"nats://u:hunter2@host?x": "server 1", "nats://u:hunter2@host:x": "server 1", "nats://u:1/hunter2@host": "server 1",
		"nats://u:hunter2,@host": "server 1",
	} {
		err := CheckServers(bad)
		if err == nil || !strings.Contains(err.Error(), server) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
