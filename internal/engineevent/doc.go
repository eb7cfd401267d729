// Package engineevent holds what inference engines publish about their KV caches,
// and the decoder and encoder of those messages.
package engineevent
