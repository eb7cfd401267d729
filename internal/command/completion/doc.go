// Package completion writes scripts that complete a command line in a shell.
//
//	io.WriteString(stdout, completion.Script(app, "bash"))
//
// A script comes from the commands and flags that kong knows, so that nothing is declared twice.
// It completes commands, flags, and the values of flags with a fixed set, and leaves other values
// to the shell, which completes files. Hidden commands and flags are left out. The script runs no
// program.
package completion
