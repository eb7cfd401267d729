// Package routertest runs routers for tests: a Bench is one in a bubble of synctest,
// on a transport that the test feeds.
package routertest
