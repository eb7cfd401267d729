// Package recordedtest reads recorded messages of real engines and routers, for tests only.
//
// Golden vectors are short messages in testdata, laid out by hand. Recordings are
// too large for the repository: Dir returns the directory that BLOCKYARD_SHARED
// names, or skips the test.
package recordedtest
