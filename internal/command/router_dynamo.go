package command

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/source/dynamo"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
)

// dynamoWorkers are the flags of "blockyard router" that have it follow workers
// of NVIDIA Dynamo besides our agents.
type dynamoWorkers struct {
	Discovery string `name:"dynamo-discovery" placeholder:"DIR" env:"BLOCKYARD_DYNAMO_DISCOVERY,DYN_FILE_KV" help:"Directory of Dynamo's file discovery backend; with --dynamo-endpoint, its workers are followed too. Their events must go over the same NATS."`
	Endpoint  string `name:"dynamo-endpoint" placeholder:"NAMESPACE.COMPONENT.ENDPOINT" env:"BLOCKYARD_DYNAMO_ENDPOINT" help:"Endpoint of Dynamo's workers, such as dynamo.backend.generate. Default: none."`
}

// open follows Dynamo's workers, over n, which is needed where their events are wanted; nil when the flags
// name none.
func (d *dynamoWorkers) open(n *natssource.Source, events bool, log *zap.Logger) (*dynamo.Source, error) {
	if d.Endpoint == "" {
		return nil, nil
	}
	endpoint, err := dynamo.ParseEndpoint(d.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("--dynamo-endpoint: %w", err)
	}
	if d.Discovery == "" {
		return nil, errors.New("--dynamo-endpoint: --dynamo-discovery is required with it")
	}
	var plane dynamo.Plane
	if n != nil {
		plane = n
	}
	return dynamo.Open(dynamo.Options{Directory: d.Discovery, Endpoint: endpoint, NoEvents: !events, Log: log}, plane)
}
