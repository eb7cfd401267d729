// Package lint holds the rules of the house as tests: which package may import
// which, where a library may appear, what every package and file must have and
// must not have. There is nothing to import here; run it with
//
//	go test ./internal/lint
//
// A rule is a name, a reason and a function from a tree of files to problems. A
// failure names the file and line, the rule and the reason. Each rule is itself
// tested on small examples held in memory, at least one that must pass and one
// that must not, so that no rule can be blind.
//
// The package reads the whole repository, writes nothing and needs no network.
package lint
