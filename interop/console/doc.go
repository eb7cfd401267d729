// Package console tests the web console of agent and router in a headless Chromium, before a
// cluster with traffic: two agents, four simulated engines, two stubs of vLLM servers and a router.
//
//	make test-ops
//
// installs Chromium where that is allowed. Without BLOCKYARD_TEST_CHROMIUM the tests are skipped. The
// tests find elements by role and name in the browser's accessibility tree, as a screen reader does.
// A message of the browser about an error or a refused script fails a test. BLOCKYARD_TEST_SHOTS names a
// directory for screenshots.
package console
