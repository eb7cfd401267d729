package kvevent

import (
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/msgpack"
)

// LoadTopic is the topic of envelopes with an ActiveLoad.
const LoadTopic = "kv_metrics"

// ActiveLoad is how busy a worker rank is, in the form of Dynamo's event plane. A
// number without its Has is unknown. Values are comparable with ==.
type ActiveLoad struct {
	Worker kv.Worker
	// ActiveDecodeBlocks are the KV blocks of running requests.
	ActiveDecodeBlocks    uint64
	HasActiveDecodeBlocks bool
	// ActivePrefillTokens are the tokens that wait for prefill.
	ActivePrefillTokens    uint64
	HasActivePrefillTokens bool
	// KVUsedBlocks are the KV blocks in use on the device. Cached blocks without a
	// user do not count.
	KVUsedBlocks    uint64
	HasKVUsedBlocks bool
}

// AppendActiveLoad appends l as a map of worker_id, dp_rank, active_decode_blocks,
// active_prefill_tokens and kv_used_blocks. The last three are nil when unknown.
func AppendActiveLoad(dst []byte, l *ActiveLoad) []byte {
	dst = msgp.AppendMapHeader(dst, 5)
	dst = appendUint(dst, "worker_id", uint64(l.Worker.ID))
	dst = appendUint(dst, "dp_rank", uint64(l.Worker.Rank))
	dst = appendUint64OrNil(dst, "active_decode_blocks", l.ActiveDecodeBlocks, l.HasActiveDecodeBlocks)
	dst = appendUint64OrNil(dst, "active_prefill_tokens", l.ActivePrefillTokens, l.HasActivePrefillTokens)
	return appendUint64OrNil(dst, "kv_used_blocks", l.KVUsedBlocks, l.HasKVUsedBlocks)
}

// AppendLoadEnvelope appends the message that carries l, with topic LoadTopic.
// publisher, sequence and publishedAt are as in Envelope.
func AppendLoadEnvelope(dst []byte, publisher, sequence, publishedAt uint64, l *ActiveLoad) []byte {
	dst = appendEnvelopeHead(dst, publisher, sequence, publishedAt, LoadTopic)
	return appendAsBin(dst, func(dst []byte) []byte { return AppendActiveLoad(dst, l) })
}

// DecodeActiveLoad decodes an ActiveLoad. An absent key is nil, an absent rank 0.
// Unknown keys are skipped.
func DecodeActiveLoad(b []byte) (ActiveLoad, error) {
	var l ActiveLoad
	err := decodeMap(b, "active load", func(c *msgpack.Reader, key []byte) {
		switch string(key) {
		case "worker_id":
			l.Worker.ID = kv.WorkerID(c.Uint64())
		case "dp_rank":
			l.Worker.Rank = kv.DPRank(c.Uint(math.MaxUint32))
		case "active_decode_blocks":
			l.ActiveDecodeBlocks, l.HasActiveDecodeBlocks = c.OptionalUint64()
		case "active_prefill_tokens":
			l.ActivePrefillTokens, l.HasActivePrefillTokens = c.OptionalUint64()
		case "kv_used_blocks":
			l.KVUsedBlocks, l.HasKVUsedBlocks = c.OptionalUint64()
		default:
			c.Skip()
		}
	}, "worker_id")
	if err != nil {
		return ActiveLoad{}, err
	}
	return l, nil
}

// DecodeLoadEnvelope returns the ActiveLoad in a whole message of the load topic: a map of topic and
// payload. An envelope of another topic is an error.
func DecodeLoadEnvelope(b []byte) (ActiveLoad, error) {
	var topic string
	var payload []byte
	var seen msgpack.Keys
	c := msgpack.NewReader(b)
	for range c.Map() {
		switch key := c.Text(); string(key) {
		case "topic":
			topic = string(c.Text())
			seen.Add(0)
		case "payload":
			payload = c.Bin()
			seen.Add(1)
		default:
			c.Skip()
		}
	}
	seen.Require(c, "topic", "payload")
	c.End()
	if c.Err == nil && topic != LoadTopic {
		c.Fail("topic %.64q: want %q", topic, LoadTopic)
	}
	if c.Err != nil {
		return ActiveLoad{}, fmt.Errorf("load envelope: %w", c.Err)
	}
	return DecodeActiveLoad(payload)
}
