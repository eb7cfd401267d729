// Package nats puts streams of router events on NATS, and answers the consumers
// that have lost some of them.
//
// A Conn is a connection; a Feed is one owner's publisher on it, with an id of its
// own that is new at every start. See package publisher for what a feed promises.
package nats
