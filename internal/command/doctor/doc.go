// Package doctor is "blockyard doctor": it asks a node, its agent, engines, NATS and a router
// about their state, and names the causes of what is wrong with the line to change.
//
//	c := doctor.Command{Agent: "127.0.0.1:9400", Timeout: 10 * time.Second}
//	err := c.Run(ctx, os.Stdout) // a Verdict when something was found
//
// Each cause that a check can find is in the table of Causes. A check adds findings, each with
// its cause, what was seen, and what to change. A part that does not answer is a finding, and
// the others are asked all the same.
//
// Guarantees: doctor changes nothing. It opens no session at the agent and sends no prompt; it
// has engines count the tokens of one short text. It ends within its timeout. A Command belongs
// to one goroutine.
package doctor
