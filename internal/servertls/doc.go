// Package servertls encrypts listeners with certificates that are replaced while the
// process runs.
//
//	files := servertls.Files{Cert: "server.pem", Key: "server.key", ClientCA: "clients.pem"}
//	l, err = files.Listen(l, log)
//
// Listen reads the files and returns an error that names the flag of the bad one. Later a
// handshake looks at the files at most once a second. New connections get the new
// certificate; bad files keep the certificate of before and are logged once.
//
// Accept returns connections whose handshake has ended. A handshake takes at most five seconds and holds up no other;
// Close ends those that wait. The listener below bounds the connections.
//
// With ClientCA, only clients with a certificate of one of its authorities get in. TLS 1.2
// is the oldest version. HTTP/2 is offered. Values may be used from any goroutine.
package servertls
