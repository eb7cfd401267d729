package nats_test

import (
	"errors"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router/source"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestAGroupCountsWhatItHasNoRoomFor: one request is answered at a time, one waits, and the answer knows
// since when. The count survives stop.
func TestAGroupCountsWhatItHasNoRoomFor(t *testing.T) {
	n, err := natssource.Connect(natssource.Options{URL: sourcetest.StartServer(t).ClientURL(), Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	asked, release, end := make(chan time.Time), make(chan struct{}), make(chan struct{})
	stop, dropped, err := n.AnswerGroup("g", "s", 1, func(_ []byte, arrived time.Time) ([]byte, error) {
		select {
		case asked <- arrived:
			<-release
		case <-end:
		}
		return nil, errors.New("no")
	})
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan error, 2)
	ask := func() {
		_, err := n.Request(t.Context(), "s", nil)
		answers <- err
	}
	go ask()
	<-asked
	go ask()
	// Of these requests and the second one of ask, one waits and the others are dropped.
	sourcetest.Eventually(t, "a full queue", func() bool {
		if err := n.Publish("s", nil); err != nil {
			t.Error(err)
		}
		return dropped() > 0
	})
	released := time.Now()
	release <- struct{}{}
	if arrived := <-asked; arrived.After(released) {
		t.Errorf("arrived %v after the first answer", arrived.Sub(released))
	}
	close(release)
	close(end)
	var answer source.AnswerError
	if err := <-answers; !errors.As(err, &answer) || answer != "no" {
		t.Errorf("%v, want the error of the answer", err)
	}
	before := dropped()
	stop()
	if after := dropped(); before == 0 || after < before {
		t.Errorf("%d dropped, and %d after stop", before, after)
	}
}
