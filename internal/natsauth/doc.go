// Package natsauth says how to log in to a NATS server and how to trust it:
// user and password, token, nkey seed or credentials file; certificate
// authority and client certificate. The publisher and the router share it, so
// that both take the same settings and refuse the same mistakes, also in the
// servers' URLs.
//
// Settings come from flags and, behind them, from the variables of NVIDIA
// Dynamo; Resolve puts the two together. Settings.Login turns them into what a
// connection needs. Seeds, credentials and certificates that lie in files are
// checked at once and read again at each connection, so that who rotates them
// restarts nothing.
//
// No error and no formatted value of this package shows a secret. Errors name
// the field that is wrong. Values may be used from any goroutine.
package natsauth
