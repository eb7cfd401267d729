// Package configfile reads the YAML file that configures the agent and the router of a node.
//
//	cluster: prod            # a setting of both commands
//	agent:
//	  host-size: 64GiB       # a flag of "blockyard agent", without its dashes
//	router:
//	  router_mode: kv        # a flag of "blockyard router", or a setting of docs/router-config.md
//
// Load parses the file. For returns the values of one command, each with the line that it is
// from. The caller says which names exist: For refuses all others. A file is read once and never
// changes; its methods may be called from any goroutine. Errors begin with the file and the line.
package configfile
