package events

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/measure"
)

// order is one line on Consume's standard input: follow an endpoint until events have
// named so many blocks, counted from the start of the process.
type order struct {
	Endpoint string `json:"endpoint"`
	// Plain only receives and decodes, without consolidator and output.
	Plain bool   `json:"plain"`
	Until uint64 `json:"until"`
}

// usage is Consume's answer to an order.
type usage struct {
	// CPU is the processor time of the process, in seconds, since the last answer or
	// the first batch.
	CPU float64 `json:"cpu"`
	// Mallocs are heap allocations in that time.
	Mallocs uint64 `json:"mallocs"`
	// Heap and RSS are bytes now, after a collection.
	Heap uint64 `json:"heap"`
	RSS  uint64 `json:"rss"`
	// Bytes is the size of the envelopes so far, Lost the number of blocks that were
	// not applied.
	Bytes uint64 `json:"bytes"`
	Lost  uint64 `json:"lost"`
}

// worker carries out an order.
type worker interface {
	// start begins to follow an endpoint.
	start(endpoint string) error
	// named returns the number of blocks that events have named so far.
	named() uint64
	// report completes an answer.
	report(u *usage)
	stop()
}

const (
	// watchEvery is the time between two looks at the worker's progress.
	watchEvery = 2 * time.Millisecond
	// idlePatience bounds the time without a batch.
	idlePatience = 20 * time.Second
)

// Consume consumes events as the orders on in say, and answers each with its use of processor and
// memory on out, until in ends. It is the main function of Options.Consumer. Its Go code runs on
// one processor at a time.
func Consume(ctx context.Context, in io.Reader, out io.Writer) error {
	runtime.GOMAXPROCS(1)
	var w worker
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); err == io.EOF {
			break
		} else if err != nil {
			return fmt.Errorf("order: %w", err)
		}
		if w == nil {
			if w = newWorker(o.Plain); w == nil {
				return fmt.Errorf("order %+v: no worker", o)
			}
			defer w.stop()
			if err := w.start(o.Endpoint); err != nil {
				return err
			}
		}
		before := readUsage()
		if err := watch(ctx, w, o.Until); err != nil {
			return err
		}
		after := readUsage()
		u := usage{CPU: after.CPU - before.CPU, Mallocs: after.Mallocs - before.Mallocs}
		if err := weigh(&u); err != nil {
			return err
		}
		w.report(&u)
		if err := answers.Encode(&u); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
	return nil
}

func newWorker(plain bool) worker {
	if plain {
		return new(plainWorker)
	}
	return new(rankWorker)
}

// watch waits until the worker has seen that many blocks. It is an error when none comes for
// idlePatience.
func watch(ctx context.Context, w worker, until uint64) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	last, moved := uint64(0), time.Now()
	for {
		n := w.named()
		if n >= until {
			return nil
		}
		if n != last {
			last, moved = n, time.Now()
		}
		if time.Since(moved) > idlePatience {
			return fmt.Errorf("%d of %d blocks came, and none for %s", n, until, idlePatience)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readUsage reads the resources that the process has used so far.
func readUsage() usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{CPU: measure.CPUSeconds(), Mallocs: m.Mallocs}
}

// weigh sets the heap and the resident memory of u, in bytes, after a garbage collection.
func weigh(u *usage) (err error) {
	runtime.GC()
	runtime.GC() // the second one frees what finalizers held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Heap = m.HeapAlloc
	u.RSS, err = measure.RSS()
	return err
}

// rankWorker is a rank with its stream, whose events become envelopes.
type rankWorker struct {
	rank   *consolidator.Rank
	stream *residency.Stream
	out    envelopes
	cancel context.CancelFunc
	done   chan error
}

// consumedWorker is the worker whose events are followed.
var consumedWorker = kv.Worker{ID: 1}

// start implements worker: it consumes the engine's events at endpoint with the agent's own code,
// which writes router events to w.out.
func (w *rankWorker) start(endpoint string) (err error) {
	w.stream = residency.NewStream(kv.WorkerOwner(consumedWorker), &w.out)
	w.rank, err = consolidator.NewRank(consolidator.RankConfig{
		Worker: consumedWorker, BlockSize: blockSize, EventsEndpoint: endpoint, ReceiveHWM: 1 << 20,
	}, w.stream)
	if err != nil {
		return err
	}
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(context.Background())
	w.done = make(chan error, 1)
	go func() { w.done <- w.rank.Run(ctx) }()
	return nil
}

func (w *rankWorker) named() uint64 { return w.rank.Stats().Blocks }

// report implements worker: it sets the bytes that left and the blocks that were lost or dropped.
func (w *rankWorker) report(u *usage) {
	w.stream.Flush() // so that the figures are those of now
	s := w.rank.Stats()
	u.Bytes, u.Lost = w.out.bytes, s.Lost+s.Gaps
	for _, n := range s.Dropped {
		u.Lost += n
	}
}

func (w *rankWorker) stop() {
	if w.cancel != nil {
		w.cancel()
		<-w.done
	}
}

// envelopes is a sink that encodes events as a publisher does and drops the bytes.
type envelopes struct {
	buf             []byte
	sequence, bytes uint64
}

// Publish implements residency.Sink: it encodes the events as messages for a router, and only
// counts the bytes.
func (e *envelopes) Publish(events []kvevent.RouterEvent) {
	for len(events) > 0 {
		n := min(len(events), kvevent.MaxEventsPerMessage)
		e.buf = kvevent.AppendEnvelope(e.buf[:0], &kvevent.Envelope{
			PublisherID: 1, Sequence: e.sequence, Topic: kvevent.Topic, Events: events[:n],
		})
		e.sequence++
		e.bytes += uint64(len(e.buf))
		events = events[n:]
	}
}

// plainWorker only receives and decodes.
type plainWorker struct {
	ctx   *zmq4.Context
	count chan uint64
	total uint64
}

// start implements worker: it only receives and decodes the engine's events at endpoint.
func (w *plainWorker) start(endpoint string) (err error) {
	if w.ctx, err = zmq4.NewContext(); err != nil {
		return err
	}
	sub, err := w.ctx.NewSocket(zmq4.SUB)
	if err != nil {
		return err
	}
	for _, err := range []error{sub.SetRcvhwm(1 << 20), sub.SetLinger(0), sub.SetSubscribe(""), sub.Connect(endpoint)} {
		if err != nil {
			return err
		}
	}
	w.count = make(chan uint64, 1<<16)
	go w.receive(sub)
	return nil
}

// receive counts the blocks in the batches that sub receives, until its ZMQ context ends.
func (w *plainWorker) receive(sub *zmq4.Socket) {
	defer sub.Close()
	var d engineevent.Decoder
	var b engineevent.Batch
	for {
		parts, err := sub.RecvMessageBytes(0)
		if err != nil {
			return
		}
		if d.Decode(parts[len(parts)-1], &b) != nil {
			return // the watcher will miss its blocks
		}
		n := 0
		for i := range b.Events {
			n += len(b.Events[i].BlockHashes)
		}
		w.count <- uint64(n)
	}
}

// named implements worker: it returns the number of blocks that the received events have named.
func (w *plainWorker) named() uint64 {
	for {
		select {
		case n := <-w.count:
			w.total += n
		default:
			return w.total
		}
	}
}

func (w *plainWorker) report(*usage) {}

func (w *plainWorker) stop() { _ = w.ctx.Term() }
