package kvevent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestDynamoQueriesAndAnswersAreReadAsTheyAreWritten: what one side of a recovery
// writes, the other side reads, for every kind of answer.
func TestDynamoQueriesAndAnswersAreReadAsTheyAreWritten(t *testing.T) {
	for _, q := range []DynamoQuery{
		{Worker: kv.Worker{ID: 1<<64 - 1, Rank: 3}, KnowsDumpFailed: true, Kind: DynamoRecovery},
		{Worker: kv.Worker{ID: 7}, QueryRequest: QueryRequest{StartID: 12, HasStart: true, EndID: 13, HasEnd: true}, Kind: DynamoRecovery},
	} {
		got, err := DecodeDynamoQuery(AppendDynamoQuery(nil, &q))
		if diff := cmp.Diff(q, got); diff != "" || err != nil {
			t.Errorf("error %v (-want +got)\n%s", err, diff)
		}
	}
	owner := kv.WorkerOwner(kv.Worker{ID: 7, Rank: 1})
	events := []RouterEvent{
		{Owner: owner, Tier: kv.TierHost, ID: 4, Kind: Stored, Parent: 9, HasParent: true, Blocks: []StoredBlock{{1, 2}, {3, 4}}},
		{Owner: owner, ID: 5, Kind: Removed, Removed: []kv.SequenceHash{1}},
		{Owner: owner, ID: 6, Kind: Cleared},
	}
	q := DynamoQuery{Worker: owner.Worker(), QueryRequest: QueryRequest{StartID: 4, HasStart: true}}
	for _, want := range []QueryReply{
		{Kind: QueryEvents, LastEventID: 6, Events: events},
		{Kind: QueryTreeDump, LastEventID: 6, Events: events[:1]},
		{Kind: QueryTooNew, LastEventID: 3},
		{Kind: QueryInvalidRange},
		{Kind: QueryDumpFailed, LastEventID: 6, Message: "busy"},
		{Kind: QueryError, Message: "wrong worker"},
	} {
		item, err := DecodeDynamoItem(AppendDynamoReply(nil, &q, &want))
		if diff := cmp.Diff(DynamoItem{Reply: &want}, item); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got)\n%s", want.Kind, err, diff)
		}
	}
	if item, err := DecodeDynamoItem(AppendDynamoFinal(nil)); err != nil || !item.Final || item.Reply != nil {
		t.Errorf("final item: %+v, %v", item, err)
	}
}

// TestDynamoAnswerWithAHoleIsVoid: a later router must not take half of an answer
// for all of it.
func TestDynamoAnswerWithAHoleIsVoid(t *testing.T) {
	r := QueryReply{Kind: QueryEvents, LastEventID: 1, Events: []RouterEvent{
		{Owner: kv.WorkerOwner(kv.Worker{ID: 7}), ID: 1, Kind: Stored, Blocks: []StoredBlock{{1, 2}}},
	}}
	whole := AppendDynamoReply(nil, &DynamoQuery{}, &r)
	wantWhole(t, whole, DecodeDynamoItem)
}
