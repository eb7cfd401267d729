// Package golden compares texts with files in testdata/golden of a test's package.
//
//	golden.Compare(t, "help/blockyard.txt", text)
//
// A test binary that imports the package has the flag -update, which writes the
// files anew. Only tests import the package.
package golden
