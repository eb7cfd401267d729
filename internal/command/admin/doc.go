// Package admin is "blockyard admin": operators change an agent or a router over its operators'
// listener (--control).
//
//	blockyard admin status
//	blockyard admin pin --model m --tokens-file prompt.json --for 1h --dry-run
//	blockyard admin drain 7 --control /run/blockyard/router-8090.sock
//
// Each command sends one request, of which docs/operations.md and docs/router-api.md have the
// answer, and prints it as a line or with --json as it is. Commands that name a namespace by its
// model ask for the agent's status first.
//
// Guarantees: with --dry-run nothing changes. A command ends within --timeout. What the server
// refuses is the command's error, with the server's reason, and so is a result that is not
// complete: blocks in use that stay, or a flush that has not ended. A Command belongs to one
// goroutine.
package admin
