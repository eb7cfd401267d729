// Package pages runs the commands of documents as a reader types them, and compares what the reader sees with
// what the document shows.
//
//	make test-ops
//
// The commands of a page run in one bash, in the repository's root, with the programs in bin. Ports and
// directories that a page names are replaced by free ones. Examples of files in these directories are written. A block right behind the commands has lines
// that the reader must see. Large numbers, fractions and spacing may differ, and "…" stands for anything.
// Commands without such lines must succeed. A block below a line <!-- not run: REASON --> is not run; each page that is
// read here has the line <!-- interop/pages runs these commands -->, and lab/cli tests that no other block goes untested.
package pages
