// Command testreport reads the output of "go test -json" and writes what a
// person wants to see of it: one line for each package that passed, the whole
// output of each test and package that failed, and nothing else.
//
//	go test -json ./... | testreport -tally FILE
//
// It adds one line "PASSED FAILED" to the tally file. Top-level tests are
// counted, examples and fuzz seed runs included; subtests are part of their
// test. A package that fails outside its tests (it does not build, it panics,
// TestMain complains) counts as one failure. Input that is not JSON, such as
// what the go command itself complains about, is shown and counts as one
// failure too. So does no input at all: a summary never hides that nothing ran.
//
// Exit status: 0 when nothing failed, 1 otherwise.
package main
