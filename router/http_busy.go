package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/blockyard-ai/blockyard/router/schedule"
)

// busyAnswer is the busy thresholds as they are now; null is none.
type busyAnswer struct {
	DecodeBlocks    *float64 `json:"active_decode_blocks_threshold"`
	PrefillTokens   *int64   `json:"active_prefill_tokens_threshold"`
	PrefillFraction *float64 `json:"active_prefill_tokens_threshold_frac"`
}

// maxBusyBody bounds a request to change them.
const maxBusyBody = 1 << 16

func (a *api) busy(w http.ResponseWriter, _ *http.Request) {
	b := a.router.scheduler.Busy()
	a.answer(w, http.StatusOK, &busyAnswer{b.DecodeBlocks, b.PrefillTokens, b.PrefillFraction})
}

// setBusy changes the thresholds that the body names and leaves the others.
func (a *api) setBusy(w http.ResponseWriter, req *http.Request) {
	b := a.router.scheduler.Busy()
	// What the body does not name stays what it is. The decoder writes to where
	// pointers lead, so those of the scheduler are not for it.
	var body struct {
		busyAnswer
		// Model may be named, and is that of all workers.
		Model *string `json:"model"`
	}
	body.busyAnswer = busyAnswer{clone(b.DecodeBlocks), clone(b.PrefillTokens), clone(b.PrefillFraction)}
	d := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxBusyBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		err = plainError(err)
		a.fail(w, badBody(err), err)
		return
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		a.fail(w, http.StatusBadRequest, errors.New("body: something follows the thresholds"))
		return
	}
	if workers := a.router.Workers(); body.Model != nil && len(workers) > 0 && workers[0].Model != *body.Model {
		a.fail(w, http.StatusNotFound, fmt.Errorf("model: %.64q is not %.64q, the workers' model", *body.Model, workers[0].Model))
		return
	}
	b = schedule.BusyThresholds{DecodeBlocks: body.DecodeBlocks, PrefillTokens: body.PrefillTokens, PrefillFraction: body.PrefillFraction}
	if err := a.router.scheduler.SetBusy(b); err != nil {
		a.fail(w, http.StatusBadRequest, fmt.Errorf("busy thresholds: %w", err))
		return
	}
	a.busy(w, req)
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
