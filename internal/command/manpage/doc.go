// Package manpage writes manual pages of a command line, in the macros of man(7).
//
//	for name, page := range manpage.Pages(app) { os.WriteFile(name, page, 0o644) }
//
// The pages come from the commands and flags that kong knows, so that nothing is declared twice. There
// is a page for the program and one for each of its commands, with the commands below it. Hidden
// commands and flags are left out. The pages have no date, so that equal programs have equal pages.
package manpage
