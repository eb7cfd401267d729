// Package natsauth logs in to NATS servers, for publisher/nats and router/source/nats.
//
//	url, settings, err := natsauth.Resolve(flags.URL, flags.Settings, os.Getenv)
//	err = settings.Validate(url)
//	login, err := settings.Login()
//	conn, err := natsauth.Connect(url, login, away, options...)
//
// [Settings] name user and password, a token, an nkey seed or a credentials file, and the
// certificates to trust and to show. [Resolve] fills in what is missing from the
// environment variables of NVIDIA Dynamo. [Connect] tries once, and then for ever in the
// background.
//
// Guarantees: files are checked by Login and read again at each connection, so rotated
// files need no restart. No error and no formatted value shows a secret. An error names
// the setting that is wrong.
//
// Values may be used from any goroutine. The caller of Connect closes the connection.
package natsauth
