package kvevent

import (
	"strings"
	"testing"
)

func TestSubjectsNameClusterAndPublisher(t *testing.T) {
	const publisher = 0x0123456789abcd
	for got, want := range map[string]string{
		EventsSubject("prod", publisher):   "blockyard.prod.kv-events.000123456789abcd",
		AllEventsSubject("prod"):           "blockyard.prod.kv-events.*",
		AnnounceSubject("prod", publisher): "blockyard.prod.announce.000123456789abcd",
		AllAnnounceSubject("prod"):         "blockyard.prod.announce.*",
		QuerySubject("prod", publisher):    "blockyard.prod.kv-query.000123456789abcd",
		StreamName("prod"):                 "blockyard-prod",
		SnapshotBucket("prod"):             "blockyard-prod-router",
		StreamSubjects("prod")[0]:          AllEventsSubject("prod"),
		StreamSubjects("prod")[1]:          AllAnnounceSubject("prod"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestClusterNamesThatBreakSubjectsAreRefused(t *testing.T) {
	for _, good := range []string{"a", "Prod-1_b", strings.Repeat("x", 64)} {
		if err := CheckCluster(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "a.b", "a*", ">", "a b", "ä", "a\n", strings.Repeat("x", 65)} {
		if err := CheckCluster(bad); err == nil {
			t.Errorf("cluster %q: no error", bad)
		}
	}
}
