// Package envoy tests the endpoint picker of "blockyard router --ext-proc" behind a real
// Envoy. Envoy runs the configuration of docs/envoy.md. The workers are stubs of package
// lab/front, which stream over HTTP and publish KV events.
//
//	make test-envoy
//
// installs Envoy on first use. Without BLOCKYARD_ENVOY the tests are skipped.
package envoy
