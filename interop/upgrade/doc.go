// Package upgrade tests this version beside the previous one, as processes: every mix of agent, engine
// and router, events over a NATS server, tiers and snapshots that the other version wrote, and agents that
// are replaced under live engines.
//
//	make test-ops REF=v0.1.0
//
// BLOCKYARD_BIN names the directory with this version's programs and nats-server, BLOCKYARD_TEST_PREVIOUS that of the
// previous version's programs. scripts/previous.sh builds those. Without them the tests are skipped.
// They fail when both programs have the same version.
package upgrade
