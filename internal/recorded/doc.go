// Package recorded reads what real engines and routers sent: recordings, and golden
// vectors laid out by hand. It is for tests only.
package recorded
