// Package inspect is "blockyard inspect": it shows the state of events at an agent or a
// router.
//
//	c := inspect.Command{URL: "http://127.0.0.1:9400", Timeout: time.Second}
//	err := c.Validate()
//	err = c.Run(ctx, os.Stdout)
//
// A Command asks the server for a few JSON documents, each of at most 64 MiB, and prints
// them as tables or as one JSON object. It changes nothing at the server. It belongs to one
// goroutine. Errors name the path that failed.
package inspect
