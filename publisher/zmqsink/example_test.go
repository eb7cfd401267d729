package zmqsink_test

import (
	"fmt"
	"log"

	zmq "github.com/pebbe/zmq4"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// table knows the tokens of blocks. The product uses consolidator/tokens.Table.
type table struct{}

func (table) Describe(_ kv.SequenceHash, e *engineevent.Event) bool {
	e.Tokens, e.BlockSize = append(e.Tokens[:0], 1, 2, 3, 4), 4
	return true
}

// out adds to a Sink the method that a test source wants.
type out struct{ *zmqsink.Sink }

func (out) HealthChanged(kvevent.Health) {}

// A subscriber gets the blocks of a worker in vLLM's event format.
func Example() {
	src := publishertest.NewSource() // as a residency.Merged
	sink, err := zmqsink.New(zmqsink.Options{
		Bind: "tcp://127.0.0.1:*", ReplayBind: "tcp://127.0.0.1:*", Worker: src.Owner().Worker(), BlockSize: 4,
	}, src, table{})
	check(err)
	defer sink.Close()
	src.Sink = out{sink}
	src.Store(1, 1)

	subscriber, err := zmq.NewSocket(zmq.SUB)
	check(err)
	defer subscriber.Close()
	check(subscriber.Connect(sink.Endpoint()))
	check(subscriber.SetSubscribe(""))
	var decoder engineevent.Decoder
	var batch engineevent.Batch
	for stored := false; !stored; { // the whole state, behind an AllBlocksCleared
		frames, err := subscriber.RecvMessageBytes(0) // topic, sequence number, payload
		check(err)
		check(decoder.Decode(frames[2], &batch))
		for _, e := range batch.Events {
			if e.Kind == kvevent.Stored {
				fmt.Println(e.Kind, e.Tokens)
				stored = true
			}
		}
	}
	// Output:
	// stored [1 2 3 4]
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
