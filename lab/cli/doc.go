// Package cli has the subcommands of blockyard-lab: demo, bench, sim-engine, and
// hidden ones that these start as processes of their own.
//
//	os.Exit(cli.New(version).Main())
//
// Each subcommand turns its flags into the Options of one package of the lab and
// runs that package. Agents and routers are this binary again, under its hidden
// commands agent and router, so that no other build can slip in; --blockyard names
// another one.
//
// A command whose context ends stops its processes and removes its files. It has no result:
// that is an error, and the exit status is 1.
package cli
