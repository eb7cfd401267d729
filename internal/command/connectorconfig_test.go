package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// connectorConfig runs "blockyard connector-config" with arguments in one string.
func connectorConfig(t *testing.T, args string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = Product("").Run(t.Context(), append([]string{"connector-config"}, strings.Fields(args)...), &out, &errs)
	return status, out.String(), errs.String()
}

// The whole text is compared: deployments have it in their own files.
func TestConnectorConfigIsWhatTheEngineReads(t *testing.T) {
	for args, want := range map[string]string{
		"kvbm --engine vllm": `{"kv_connector":"DynamoConnector","kv_connector_module_path":"kvbm.vllm_integration.connector","kv_role":"kv_both"}`,
		"kvbm --engine=vllm --socket=/run/a.sock --worker-id=18446744073709551615": `{"kv_connector":"DynamoConnector","kv_connector_module_path":"kvbm.vllm_integration.connector","kv_role":"kv_both","kv_connector_extra_config":{"socket":"/run/a.sock","worker_id":18446744073709551615}}`,
		"blockyard --engine vllm": `{"kv_connector":"BlockyardConnector","kv_connector_module_path":"blockyard.vllm","kv_role":"kv_both","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"socket":"/run/blockyard/agent.sock"}}`,
		"kvbm --engine vllm --pd": `{"kv_connector":"PdConnector","kv_connector_module_path":"kvbm.vllm_integration.connector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"DynamoConnector","kv_connector_module_path":"kvbm.vllm_integration.connector","kv_role":"kv_both"},{"kv_connector":"NixlConnector","kv_role":"kv_both"}]}}`,
		"blockyard --engine vllm --pd --output yaml --worker-id 9": `kv-transfer-config:
  kv_connector: "PdConnector"
  kv_connector_module_path: "kvbm.vllm_integration.connector"
  kv_role: "kv_both"
  kv_load_failure_policy: "recompute"
  kv_connector_extra_config:
    connectors:
      - kv_connector: "BlockyardConnector"
        kv_connector_module_path: "blockyard.vllm"
        kv_role: "kv_both"
        kv_connector_extra_config:
          socket: "/run/blockyard/agent.sock"
          worker_id: 9
      - kv_connector: "NixlConnector"
        kv_role: "kv_both"`,
		"kvbm --engine vllm --output args --socket /it's": `--kv-transfer-config '{"kv_connector":"DynamoConnector","kv_connector_module_path":"kvbm.vllm_integration.connector","kv_role":"kv_both","kv_connector_extra_config":{"socket":"/it'\''s"}}'`,
		"kvbm --engine trtllm": `kv_connector_config:
  connector_module: "kvbm.trtllm_integration.connector"
  connector_scheduler_class: "DynamoKVBMConnectorLeader"
  connector_worker_class: "DynamoKVBMConnectorWorker"
kv_cache_config:
  enable_partial_reuse: false`,
		"blockyard --engine trtllm --output json": `{"kv_connector_config":{"connector_module":"blockyard.trtllm","connector_scheduler_class":"BlockyardLeader","connector_worker_class":"BlockyardWorker"},"kv_cache_config":{"enable_partial_reuse":false}}`,
	} {
		status, stdout, stderr := connectorConfig(t, args)
		if status != 0 || stderr != "" || stdout != want+"\n" {
			t.Errorf("%s: status %d, %s\n%s\nwant\n%s", args, status, stderr, stdout, want)
		}
		if strings.HasPrefix(want, "{") && !json.Valid([]byte(stdout)) {
			t.Errorf("%s: not JSON: %s", args, stdout)
		}
	}
}

// TensorRT-LLM's options have no place for our settings: people are told the
// variables, where they do not get into the file.
func TestConnectorConfigNamesTheVariablesOfTensorRTLLM(t *testing.T) {
	c := connectorConfigCmd{Names: "kvbm", Engine: "trtllm", Output: "auto", Socket: "/x", WorkerID: 3}
	var out, hints bytes.Buffer
	if err := c.write(&out, &hints); err != nil {
		t.Fatal(err)
	}
	const want = "the engine's environment needs BLOCKYARD_SOCKET='/x'\nthe engine's environment needs BLOCKYARD_WORKER_ID=3\n"
	if hints.String() != want || strings.Contains(out.String(), "/x") {
		t.Errorf("hints %q, file %q", hints.String(), out.String())
	}
}

func TestWrongConnectorConfigIsOneLineThatNamesIt(t *testing.T) {
	for args, wants := range map[string][]string{
		"":                                   {"--engine"},
		"kvbm":                               {"--engine", "vllm|trtllm"},
		"nixl --engine vllm":                 {"nixl", "kvbm", "blockyard"},
		"kvbm --engine sglang":               {"--engine", "sglang", "vllm", "trtllm"},
		"kvbm --engine vllm --output toml":   {"--output", "toml", "json", "yaml", "args"},
		"kvbm --engine vllm --worker-id=-1":  {"--worker-id", "-1", "0 to 2^64-1"},
		"kvbm --engine vllm --socket agent":  {"--socket", `"agent"`, "absolute path"},
		"kvbm --engine trtllm --pd":          {"--pd", "trtllm", "--engine vllm"},
		"kvbm --engine trtllm --output args": {"--output args", "trtllm", "json or yaml"},
		"kvbm --engine vllm --socket /" + strings.Repeat("a", 107): {"--socket", "107 bytes"},
	} {
		status, stdout, stderr := connectorConfig(t, args)
		if status == 0 || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: status %d, %q, %q", args, status, stdout, stderr)
		}
		for _, w := range wants {
			if !strings.Contains(stderr, w) {
				t.Errorf("%q: %q does not say %q", args, stderr, w)
			}
		}
	}
}
