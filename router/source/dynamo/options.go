package dynamo

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// Plane is a connection to Dynamo's event plane; *nats.Source implements it.
type Plane interface {
	// Subscribe delivers the messages of a subject in order until stop is called. A slow
	// receiver loses messages; dropped returns their number.
	Subscribe(subject string, messages chan<- []byte) (stop func(), dropped func() uint64, err error)
	// Connections returns the number of connections so far. Messages may have been lost
	// when the number has grown. Connected reports whether there is a connection now.
	Connections() uint64
	Connected() bool
}

// noPlane is the Plane of a Source without events. It is connected and delivers nothing.
type noPlane struct{}

// Subscribe implements Plane.
func (noPlane) Subscribe(string, chan<- []byte) (stop func(), dropped func() uint64, err error) {
	return func() {}, func() uint64 { return 0 }, nil
}

// Connections implements Plane.
func (noPlane) Connections() uint64 { return 1 }

// Connected implements Plane.
func (noPlane) Connected() bool { return true }

// Options say which workers to follow.
type Options struct {
	// Directory is the directory of Dynamo's file discovery backend, DYN_FILE_KV.
	Directory string
	// Endpoint is what the workers serve.
	Endpoint Endpoint
	// PollEvery is how often the directory is read; 0 means 500 ms.
	PollEvery time.Duration
	// MaxRanks bounds the ranks; 0 means 4,096. MaxBlocks bounds the blocks of all ranks, at
	// about 150 bytes each; 0 means 1<<24.
	MaxRanks, MaxBlocks int
	// NoEvents neither subscribes to events nor queries for them. The Plane then brings
	// only loads, and may be nil.
	NoEvents bool
	// Log may be nil.
	Log *zap.Logger
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	switch {
	case o.Directory == "":
		return errors.New("dynamo discovery directory: must not be empty")
	case o.Endpoint.Namespace == "" || o.Endpoint.Component == "" || o.Endpoint.Name == "":
		return fmt.Errorf("dynamo endpoint %q: namespace, component or name is empty", o.Endpoint)
	case o.PollEvery < 0 || o.MaxRanks < 0 || o.MaxBlocks < 0:
		return fmt.Errorf("dynamo poll %v, max ranks %d, max blocks %d: must not be negative", o.PollEvery, o.MaxRanks, o.MaxBlocks)
	}
	return nil
}

// withDefaults returns the options with defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.PollEvery = cmp.Or(o.PollEvery, 500*time.Millisecond)
	o.MaxRanks = cmp.Or(o.MaxRanks, 1<<12)
	o.MaxBlocks = cmp.Or(o.MaxBlocks, 1<<24)
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return o
}
