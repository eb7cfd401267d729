package nats

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"
)

// EmbeddedOptions configure a NATS server inside this process. The zero value
// is a server for this machine only, on a free port, with a new token.
type EmbeddedOptions struct {
	// Host is the address to listen on; default 127.0.0.1.
	Host string
	// Port is the TCP port, 1..65535; 0 is any free one.
	Port int
	// Token is what clients must present; empty: a random one is made.
	Token string
	// MaxPayload is the largest message in bytes; default 1 MiB.
	MaxPayload int32
	// MaxConnections bounds the connected clients; 0 means 65,536.
	MaxConnections int
	// StoreDir is the directory for JetStream's streams. A server that starts with the
	// directory of an earlier one has its streams. Empty: no JetStream.
	StoreDir string
	// MaxStore bounds the bytes that JetStream stores; default 8 GiB.
	MaxStore int64
	// Log receives the server's warnings and errors; nil: none.
	Log *zap.Logger
}

// startTimeout bounds the wait for the embedded server.
const startTimeout = 10 * time.Second

// defaultMaxStore is the default of EmbeddedOptions.MaxStore. Streams are in files;
// JetStream keeps only consumers in memory, within maxStreamMemory.
const (
	defaultMaxStore = 8 << 30
	maxStreamMemory = 256 << 20
)

// Embedded is a running NATS server.
type Embedded struct {
	srv   *server.Server
	url   string
	close sync.Once
}

// StartEmbedded starts a NATS server inside this process and returns when it accepts clients. Zero
// fields of o get defaults: a free port, a random token, the local host only. The caller shuts the
// server down. An error names a bad option, or says that no client was accepted in time.
func StartEmbedded(o EmbeddedOptions) (*Embedded, error) {
	if o.Port < 0 || o.Port > 65535 {
		return nil, fmt.Errorf("embedded nats port: %d is not in 0..65535", o.Port)
	}
	if o.MaxPayload < 0 {
		return nil, fmt.Errorf("embedded nats max payload: %d is negative", o.MaxPayload)
	}
	if o.MaxConnections < 0 {
		return nil, fmt.Errorf("embedded nats max connections: %d is negative", o.MaxConnections)
	}
	if o.MaxStore < 0 {
		return nil, fmt.Errorf("embedded nats max store: %d is negative", o.MaxStore)
	}
	o.MaxStore = cmp.Or(o.MaxStore, defaultMaxStore)
	o.Host = cmp.Or(o.Host, "127.0.0.1")
	o.Port = cmp.Or(o.Port, server.RANDOM_PORT)
	if o.Token == "" {
		var err error
		if o.Token, err = newToken(); err != nil {
			return nil, err
		}
	}
	if err := checkPort(o.Host, o.Port); err != nil {
		return nil, err
	}
	srv, err := server.NewServer(&server.Options{
		ServerName: "blockyard", Host: o.Host, Port: o.Port, Authorization: o.Token, MaxPayload: o.MaxPayload, MaxConn: o.MaxConnections,
		JetStream: o.StoreDir != "", StoreDir: o.StoreDir, JetStreamMaxStore: o.MaxStore, JetStreamMaxMemory: maxStreamMemory,
		NoSigs: true, NoLog: o.Log == nil,
	})
	if err != nil {
		return nil, fmt.Errorf("embedded nats: %w", err)
	}
	if o.Log != nil {
		srv.SetLoggerV2(serverLog{o.Log.Sugar()}, false, false, false)
	}
	srv.Start()
	if !srv.ReadyForConnections(startTimeout) {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, fmt.Errorf("embedded nats: %s accepts no clients", net.JoinHostPort(o.Host, strconv.Itoa(o.Port)))
	}
	u := url.URL{Scheme: "nats", User: url.User(o.Token), Host: srv.Addr().String()}
	return &Embedded{srv: srv, url: u.String()}, nil
}

// URL returns the URL for clients, with the token.
func (e *Embedded) URL() string { return e.url }

// Close stops the server and waits for it. It is idempotent.
func (e *Embedded) Close() {
	e.close.Do(func() {
		e.srv.Shutdown()
		e.srv.WaitForShutdown()
	})
}

// checkPort listens once on the server's address. The server itself does not report that
// it could not listen, and looks as if it started slowly.
func checkPort(host string, port int) error {
	if port == server.RANDOM_PORT {
		port = 0
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("embedded nats: %w", err)
	}
	return l.Close()
}

func newToken() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("embedded nats token: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// serverLog writes a NATS server's log to a zap logger, notices as details.
type serverLog struct{ log *zap.SugaredLogger }

func (l serverLog) Noticef(format string, v ...any) { l.log.Debugf(format, v...) }
func (l serverLog) Warnf(format string, v ...any)   { l.log.Warnf(format, v...) }
func (l serverLog) Fatalf(format string, v ...any)  { l.log.Errorf(format, v...) }
func (l serverLog) Errorf(format string, v ...any)  { l.log.Errorf(format, v...) }
func (l serverLog) Debugf(format string, v ...any)  { l.log.Debugf(format, v...) }
func (l serverLog) Tracef(format string, v ...any)  { l.log.Debugf(format, v...) }
