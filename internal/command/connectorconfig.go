package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// namesOwn stands for Blockyard's import names. The other value of the argument is kvbm.
	namesOwn = "blockyard"
	// engineVLLM is vLLM. The other value of --engine is trtllm.
	engineVLLM = "vllm"

	// defaultSocket is where an agent listens by default.
	defaultSocket = "/run/blockyard/agent.sock"
	// maxSocketPath is the longest path that fits the kernel's socket address.
	maxSocketPath = 107
)

// connectorConfigCmd is "blockyard connector-config". It prints the configuration of an
// engine that uses the connector.
type connectorConfigCmd struct {
	Names    string       `arg:"" enum:"kvbm,blockyard" help:"Import names that the engine loads: those of KVBM (kvbm), which existing deployments have, or Blockyard's own (blockyard)."`
	Engine   string       `required:"" enum:"vllm,trtllm" placeholder:"vllm|trtllm" help:"Engine to be configured: vllm or trtllm."`
	Output   string       `enum:"auto,json,yaml,args" default:"auto" help:"Form: json, yaml, or args for a command line. auto is json for vLLM, yaml for TensorRT-LLM."`
	PD       bool         `name:"pd" help:"For prefill/decode with vLLM: the connector and NixlConnector in one."`
	Socket   string       `placeholder:"PATH" help:"The agent's socket, an absolute path of at most 107 bytes. Default: BLOCKYARD_SOCKET of the engine's environment, or /run/blockyard/agent.sock."`
	WorkerID workerNumber `name:"worker-id" placeholder:"N" help:"Worker that a router sends requests to, unique in the cluster. 0 leaves it to the connector."`
}

// Run writes the configuration to stdout. Settings that the configuration cannot carry
// go to standard error.
func (c *connectorConfigCmd) Run(stdout io.Writer) error { return c.write(stdout, os.Stderr) }

// write writes the engine's configuration to stdout. Environment variables that the engine needs
// besides go to stderr, so that stdout can be a file of the engine.
func (c *connectorConfigCmd) write(stdout, stderr io.Writer) error {
	if err := c.validate(); err != nil {
		return err
	}
	var text string
	if c.Engine == engineVLLM {
		text = c.vllmText()
	} else {
		text = c.trtllmText()
		for _, variable := range c.variables() {
			if _, err := fmt.Fprintf(stderr, "the engine's environment needs %s\n", variable); err != nil {
				return fmt.Errorf("write hint: %w", err)
			}
		}
	}
	if _, err := fmt.Fprintln(stdout, text); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// validate returns an error for flags that do not go together, and for a socket's path that no
// socket can have. The error names flag, value and allowed values.
func (c *connectorConfigCmd) validate() error {
	switch {
	case c.Socket != "" && (!filepath.IsAbs(c.Socket) || len(c.Socket) > maxSocketPath):
		return fmt.Errorf("--socket %q: want an absolute path of at most %d bytes", c.Socket, maxSocketPath)
	case c.PD && c.Engine != engineVLLM:
		return fmt.Errorf("--pd with --engine %s: want --engine %s", c.Engine, engineVLLM)
	case c.Output == "args" && c.Engine != engineVLLM:
		return fmt.Errorf("--output args with --engine %s, which reads a file: want json or yaml", c.Engine)
	}
	return nil
}

// vllmText returns vLLM's configuration in the form of --output: the JSON value of its option
// --kv-transfer-config, a YAML file, or the option quoted for a shell.
func (c *connectorConfigCmd) vllmText() string {
	transfer := c.vllmTransfer()
	switch c.Output {
	case "yaml":
		return object{{"kv-transfer-config", transfer}}.yaml(0)
	case "args":
		return "--kv-transfer-config " + shellQuote(transfer.json())
	}
	return transfer.json()
}

// vllmTransfer returns vLLM's kv_transfer_config. With KVBM's names it equals that of KVBM's
// deployments. With our own names a failed load is computed again, while the engine's default fails
// the request. With --pd (prefill and decode on different engines) our connector is one of two that
// KVBM's PdConnector joins; the other, NIXL's, moves blocks between engines.
func (c *connectorConfigCmd) vllmTransfer() object {
	const kvbmModule, extraKey = "kvbm.vllm_integration.connector", "kv_connector_extra_config"
	transfer := vllmConnector("DynamoConnector", kvbmModule)
	if c.Names == namesOwn {
		transfer = vllmConnector("BlockyardConnector", "blockyard.vllm")
	}
	extra := c.extraConfig()
	if c.PD {
		if len(extra) > 0 {
			transfer = append(transfer, member{extraKey, extra})
		}
		nixl := object{{"kv_connector", "NixlConnector"}, {"kv_role", "kv_both"}}
		extra = object{{"connectors", []object{transfer, nixl}}}
		transfer = vllmConnector("PdConnector", kvbmModule)
	}
	if c.Names == namesOwn {
		transfer = append(transfer, member{"kv_load_failure_policy", "recompute"})
	}
	if len(extra) > 0 {
		transfer = append(transfer, member{extraKey, extra})
	}
	return transfer
}

func vllmConnector(name, module string) object {
	return object{{"kv_connector", name}, {"kv_connector_module_path", module}, {"kv_role", "kv_both"}}
}

// extraConfig returns the settings of our connector inside the engine: the agent's socket and the
// worker id. With KVBM's names it has only those that were given on the command line.
func (c *connectorConfigCmd) extraConfig() (extra object) {
	if socket := c.Socket; socket != "" {
		extra = append(extra, member{"socket", socket})
	} else if c.Names == namesOwn {
		extra = append(extra, member{"socket", defaultSocket})
	}
	if c.WorkerID != 0 {
		extra = append(extra, member{"worker_id", uint64(c.WorkerID)})
	}
	return extra
}

// trtllmText returns the file of options for TensorRT-LLM, as JSON or YAML. It turns partial
// reuse of blocks off, as KVBM's deployments do.
func (c *connectorConfigCmd) trtllmText() string {
	module, leader, worker := "kvbm.trtllm_integration.connector", "DynamoKVBMConnectorLeader", "DynamoKVBMConnectorWorker"
	if c.Names == namesOwn {
		module, leader, worker = "blockyard.trtllm", "BlockyardLeader", "BlockyardWorker"
	}
	options := object{
		{"kv_connector_config", object{
			{"connector_module", module}, {"connector_scheduler_class", leader}, {"connector_worker_class", worker},
		}},
		{"kv_cache_config", object{{"enable_partial_reuse", false}}},
	}
	if c.Output == "json" {
		return options.json()
	}
	return options.yaml(0)
}

// variables returns NAME=value, quoted for a shell, for the settings that TensorRT-LLM's options
// cannot carry. The connector reads them from its environment.
func (c *connectorConfigCmd) variables() (list []string) {
	if c.Socket != "" {
		list = append(list, "BLOCKYARD_SOCKET="+shellQuote(c.Socket))
	}
	if c.WorkerID != 0 {
		list = append(list, "BLOCKYARD_WORKER_ID="+strconv.FormatUint(uint64(c.WorkerID), 10))
	}
	return list
}

// workerNumber is a worker's id on a command line.
type workerNumber uint64

// UnmarshalText implements encoding.TextUnmarshaler, by which kong reads --worker-id: a whole
// number.
func (n *workerNumber) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return fmt.Errorf("%q: want a whole number 0 to 2^64-1", text)
	}
	*n = workerNumber(v)
	return nil
}

// shellQuote makes a word of a POSIX shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// object is a JSON object that keeps the order of its members. Their values are
// strings, booleans, numbers, objects and lists of objects.
type object []member

type member struct {
	key   string
	value any
}

// MarshalJSON implements json.Marshaler. It keeps the order of the members, which a map would not.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s:%s", scalar(m.key), scalar(m.value))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (o object) json() string { return scalar(o) }

// scalar returns a value as JSON on one line, which YAML reads too. A value that JSON cannot encode
// is a bug.
func scalar(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("BUG: %T in a configuration: %v", v, err))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// yaml returns the object as lines of YAML, indented by level times two blanks, without a line
// break at the end.
func (o object) yaml(level int) string {
	indent := strings.Repeat("  ", level)
	lines := make([]string, 0, len(o))
	for _, m := range o {
		switch v := m.value.(type) {
		case object:
			lines = append(lines, indent+m.key+":", v.yaml(level+1))
		case []object:
			lines = append(lines, indent+m.key+":")
			for _, item := range v {
				// The first member stands behind the dash.
				lines = append(lines, indent+"  - "+strings.TrimLeft(item.yaml(level+2), " "))
			}
		default:
			lines = append(lines, indent+m.key+": "+scalar(v))
		}
	}
	return strings.Join(lines, "\n")
}
