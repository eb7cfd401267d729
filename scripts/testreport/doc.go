// Command testreport shortens the output of "go test -json". It writes one line for each
// package that passed, and the whole output of each test and package that failed.
//
//	go test -json ./... | testreport -tally FILE
//
// testreport adds one line "PASSED FAILED" to the tally file. It counts top-level tests,
// examples and fuzz seed runs included. A subtest is part of its test. One failure each
// are:
//
//   - a package that fails outside its tests: it does not build, it panics, or TestMain
//     fails
//   - input that is not JSON, such as an error of the go command, which is shown
//   - no input at all, so that a summary never hides that nothing ran
//
// Exit status: 0 when nothing failed, 1 otherwise.
package main
