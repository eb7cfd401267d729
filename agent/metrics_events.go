package agent

import "github.com/blockyard-ai/blockyard/internal/metric/prom"

// collectPath shows what events pass on their way out.
func (c *collector) collectPath(m metrics, s *Stats) {
	t, o := &s.Totals, &s.Outputs
	part := pathMetrics{c, m}
	sendPart(part, "rank", &t.Ranks)
	sendPart(part, "stream", &t.Streams)
	sendPart(part, "feed", &t.Feeds)
	sendPart(part, "zmq", &t.ZMQ)
	sendPart(part, "dynamo", &t.Dynamo)
	sendPart(part, "outputs", o)
	if o.Dynamo != nil {
		sendPart(part, "dynamo_plane", o.Dynamo)
	}
	if o.Tokens != nil {
		sendPart(part, "tokens", o.Tokens)
	}
	for i := range o.Ranks {
		r := &o.Ranks[i]
		if r.ZMQ != nil {
			m.gauge(c.outputBlocks, float64(r.Blocks), r.Owner, "zmq")
		}
		if r.Dynamo != nil {
			m.gauge(c.outputBlocks, float64(r.Blocks), r.Owner, "dynamo")
		}
	}
	m.gauge(c.httpClients, float64(o.HTTP.Clients))
	prom.Kinds(m, c.httpTotal, nil, &o.HTTP)
}

// pathMetrics is where the numbers of the path of events go.
type pathMetrics struct {
	*collector
	metrics
}

// sendPart sends the numbers of one part of the path of events.
func sendPart[T any](to pathMetrics, part string, s *T) {
	prom.Kinds(to.metrics, to.totals, to.standing, s, part)
}
