// Command blockyard is the product: the node agent, the router, and what an
// operator needs beside them. Package internal/command has its subcommands.
package main
