package replica

// Stats is a snapshot of the gauges and counters. The metric names follow "blockyard_router_".
type Stats struct {
	Routers    int    `metric:"replica_routers" help:"Other routers whose bookings are known. A router counts for each of its models."`
	Sent       uint64 `metric:"replica_messages_sent" help:"Messages about own bookings sent to other routers."`
	Unsent     uint64 `metric:"replica_messages_unsent" help:"Messages about own bookings that could not be sent. The other routers ask again."`
	Overrun    uint64 `metric:"replica_changes_dropped" help:"Changes of own bookings dropped from a full queue. The other routers ask again."`
	Received   uint64 `metric:"replica_messages_received" help:"Messages of other routers about their bookings."`
	Malformed  uint64 `metric:"replica_messages_malformed" help:"Messages and questions of other routers that could not be read."`
	Overflowed uint64 `metric:"replica_messages_dropped" help:"Messages of other routers dropped from a full queue. They are asked for again."`
	Oversized  uint64 `metric:"replica_messages_oversized" help:"Messages and questions of other routers above 1 MiB, which were dropped."`
	Ignored    uint64 `metric:"replica_messages_ignored" help:"Messages of a model without a publisher here."`
	Outdated   uint64 `metric:"replica_messages_outdated" help:"Messages from before another router opened the model again."`
	Excess     uint64 `metric:"replica_messages_excess" help:"Messages of more than 256 other routers of a model, which were dropped."`
	Early      uint64 `metric:"replica_messages_early_dropped" help:"Messages that came early and found no room to wait. The bookings are asked for again."`
	Duplicates uint64 `metric:"replica_messages_duplicate" help:"Messages that came a second time."`
	Lost       uint64 `metric:"replica_messages_lost" help:"Messages of other routers that did not come."`
	Booked     uint64 `metric:"replica_bookings" help:"Bookings of other routers that were applied."`
	Refused    uint64 `metric:"replica_bookings_refused" help:"Bookings of other routers that were not applied, because the account was full or a field was out of range."`
	Expired    uint64 `metric:"replica_bookings_expired" help:"Bookings dropped because their router was silent."`
	// Restatements are questions to other routers for all their bookings of a model.
	Restatements        uint64 `metric:"replica_restatements" help:"Times that another router was asked for all its bookings of a model."`
	RestatementFailures uint64 `metric:"replica_restatement_failures" help:"Restatements that got no whole answer and are tried again."`
	Divergences         uint64 `metric:"replica_divergences" help:"States of other routers that differed although no message was missing."`
	Forwarded           uint64 `metric:"replica_marks_forwarded" help:"Marks of clients that the router of the booking got from here."`
	ForwardFailures     uint64 `metric:"replica_marks_failed" help:"Marks of clients that the router of the booking did not answer."`
}

// Stats returns the gauges and counters.
func (s *State) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	for _, o := range s.models {
		out.Routers += len(o.streams)
		o.journal.mu.Lock()
		out.Overrun += o.journal.dropped
		o.journal.mu.Unlock()
	}
	return out
}
