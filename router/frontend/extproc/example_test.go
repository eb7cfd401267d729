package extproc_test

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/blockyard-ai/blockyard/router/frontend/extproc"
)

// openDoor stands for a *frontend.Door.
type openDoor struct{}

func (openDoor) Handler() http.Handler { return http.NotFoundHandler() }
func (openDoor) Ready() error          { return nil }

func Example() {
	server, err := extproc.New(extproc.Options{Door: openDoor{}, Workers: &directory{}})
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "readiness"})
	fmt.Println(r.GetStatus(), err)
	_ = conn.Close()
	stop()
	fmt.Println(<-ended)
	// Output:
	// SERVING <nil>
	// <nil>
}
