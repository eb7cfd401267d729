package extproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/blockyard-ai/blockyard/router/workers"
)

// Door decides requests; *frontend.Door implements it.
type Door interface {
	Handler() http.Handler
	// Ready returns why no request can be served; nil when one can.
	Ready() error
}

// Directory tells which worker servers there are; *workers.Directory implements it.
type Directory interface {
	Workers() []*workers.Worker
}

// Options configure a Server. Door and Workers are required.
type Options struct {
	Door    Door
	Workers Directory
	// OnlyChosen leaves out the fallbacks, for gateways that take one endpoint.
	OnlyChosen bool
	// Log may be nil.
	Log *zap.Logger
}

// Server answers Envoy. Make one with New. Its methods may be called from any goroutine.
type Server struct {
	door    Door
	handler http.Handler
	workers Directory
	names   *names
	// onlyChosen leaves fallbacks out of decisions.
	onlyChosen bool
	log        *zap.Logger
}

// New returns a Server. The error names the option that is missing.
func New(o Options) (*Server, error) {
	switch {
	case o.Door == nil:
		return nil, errors.New("extproc: door: is required")
	case o.Workers == nil:
		return nil, errors.New("extproc: workers: is required")
	case o.Log == nil:
		o.Log = zap.NewNop()
	}
	return &Server{door: o.Door, handler: o.Door.Handler(), workers: o.Workers, names: newNames(), onlyChosen: o.OnlyChosen, log: o.Log}, nil
}

const (
	// maxStreams bounds the requests of one connection of Envoy.
	maxStreams = 16384
	// maxMessage bounds a message: a body that Envoy has buffered, with its frame.
	maxMessage = 33 << 20
	// drainTimeout is how long requests may go on after the end of ctx.
	drainTimeout = 30 * time.Second
)

// Serve answers on l until ctx ends. Then it lets requests finish, for at most 30 seconds.
// The error is nil when ctx ended it.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		// Envoy's node may vanish without a reset.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 15 * time.Second}),
	)
	extprocv3.RegisterExternalProcessorServer(g, &processor{server: s})
	grpc_health_v1.RegisterHealthServer(g, &health{door: s.door})
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		late := time.AfterFunc(drainTimeout, g.Stop)
		defer late.Stop()
		g.GracefulStop()
	})
	err := g.Serve(l)
	if stop() || err != nil {
		g.Stop()
		return fmt.Errorf("serve ext_proc on %s: %w", l.Addr(), err)
	}
	<-stopped
	return nil
}

// processor has the methods that gRPC calls.
type processor struct {
	extprocv3.UnimplementedExternalProcessorServer
	server *Server
}

// Process implements the service of Envoy: one stream for each request of a client.
func (p *processor) Process(stream grpc.BidiStreamingServer[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetRequestHeaders() == nil {
		return status.Error(codes.InvalidArgument, "the first message has no request headers: set processing_mode.request_header_mode to SEND")
	}
	c := newCall(p.server, stream, first)
	defer c.end(errStreamEnded)
	return c.run()
}

// health answers probes as the protocol of endpoint pickers names them.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	door Door
}

// Check implements the gRPC health protocol. The service "liveness" serves always, all others
// while a request would be served.
func (h *health) Check(_ context.Context, r *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	serving := grpc_health_v1.HealthCheckResponse_SERVING
	switch r.GetService() {
	case "liveness":
	case "", "readiness", extprocv3.ExternalProcessor_ServiceDesc.ServiceName:
		if h.door.Ready() != nil {
			serving = grpc_health_v1.HealthCheckResponse_NOT_SERVING
		}
	default:
		return nil, status.Errorf(codes.NotFound, "service %.100q: want liveness, readiness or %s", r.GetService(), extprocv3.ExternalProcessor_ServiceDesc.ServiceName)
	}
	return &grpc_health_v1.HealthCheckResponse{Status: serving}, nil
}
