package nats

import (
	"cmp"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/natsauth"
)

// Options say how to reach a NATS server. The zero value is a server on this
// machine.
type Options struct {
	// URL names the server, or several separated by commas. User and password, or a token,
	// may be part of it: see natsauth.CheckServers. Default nats://127.0.0.1:4222.
	URL string
	// Auth says how to log in and whom to trust.
	Auth natsauth.Settings
	// JetStream makes a stream keep the published messages; nil: none are kept.
	JetStream *JetStream
	// Cluster keeps deployments that share a server apart; default "default".
	Cluster string
	// Node is a name that no other agent of the cluster may have; empty: none. Connect
	// refuses a name that another agent answers for.
	Node string
	// Name is the connection's name in the server's monitoring; default "blockyard".
	Name string
	// ConnectTimeout bounds the wait of Connect for the first connection; then Connect connects
	// in the background; default 2 s.
	ConnectTimeout time.Duration
	// ReconnectWait is the pause between attempts to connect; default 250 ms.
	ReconnectWait time.Duration
	// ReconnectBuffer bounds the bytes that wait while the connection is lost; default 1 MiB.
	ReconnectBuffer int
	// AnnounceEvery is the period of the agent's status. Each feed announces itself every fourth period,
	// and at each change; default 1 s.
	AnnounceEvery time.Duration
	// Log receives new and lost connections; nil: none. Credentials are never logged.
	Log *zap.Logger
}

const (
	defaultConnectTimeout  = 2 * time.Second
	defaultReconnectWait   = 250 * time.Millisecond
	defaultReconnectBuffer = 1 << 20
	defaultAnnounceEvery   = time.Second
	// minPayload is the smallest message limit of a server that one event fits into.
	minPayload = 64 << 10
	// defaultPayload is assumed before the first connection.
	defaultPayload = 1 << 20
	// closeTimeout bounds each wait for the server while closing.
	closeTimeout = time.Second
)

// Validate checks the fields; the error names the first bad one and shows no
// credentials.
func (o *Options) Validate() error {
	if o.Cluster != "" {
		if err := kvevent.CheckCluster(o.Cluster); err != nil {
			return fmt.Errorf("nats %w", err)
		}
	}
	if o.URL != "" {
		if err := natsauth.CheckServers(o.URL); err != nil {
			return fmt.Errorf("nats %w", err)
		}
	}
	if err := o.Auth.Validate(o.URL); err != nil {
		return err
	}
	if o.JetStream != nil {
		if err := o.JetStream.Validate(); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"connect timeout", int64(o.ConnectTimeout)},
		{"reconnect wait", int64(o.ReconnectWait)},
		{"reconnect buffer", int64(o.ReconnectBuffer)},
		{"announce period", int64(o.AnnounceEvery)},
	} {
		if f.v < 0 {
			return fmt.Errorf("nats %s: %d is negative", f.name, f.v)
		}
	}
	return nil
}

// setDefaults replaces zero fields by their defaults. Connect calls it after Validate.
func (o *Options) setDefaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.ConnectTimeout, defaultConnectTimeout)
	set(&o.ReconnectWait, defaultReconnectWait)
	set(&o.AnnounceEvery, defaultAnnounceEvery)
	o.URL = cmp.Or(o.URL, "nats://127.0.0.1:4222")
	o.Cluster = cmp.Or(o.Cluster, "default")
	o.Name = cmp.Or(o.Name, "blockyard")
	o.ReconnectBuffer = cmp.Or(o.ReconnectBuffer, defaultReconnectBuffer)
	o.Log = cmp.Or(o.Log, zap.NewNop())
}
