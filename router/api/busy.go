package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/blockyard-ai/blockyard/internal/strictjson"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// busyAnswer is the busy thresholds; null is none.
type busyAnswer struct {
	DecodeBlocks    *float64 `json:"active_decode_blocks_threshold"`
	PrefillTokens   *int64   `json:"active_prefill_tokens_threshold"`
	PrefillFraction *float64 `json:"active_prefill_tokens_threshold_frac"`
}

// maxBusyBody bounds the body that changes them.
const maxBusyBody = 1 << 16

// busy answers with the thresholds of the named model, or of models to come.
func (a *API) busy(w http.ResponseWriter, req *http.Request) {
	a.answerBusy(w, req.URL.Query().Get("model"))
}

func (a *API) answerBusy(w http.ResponseWriter, model string) {
	b, err := a.router.Busy(model)
	if err != nil {
		a.fail(w, a.service.status(err), err)
		return
	}
	a.answer(w, http.StatusOK, &busyAnswer{b.DecodeBlocks, b.PrefillTokens, b.PrefillFraction})
}

// setBusy changes the thresholds in the body and keeps the others: for one model, or for
// all models and models to come.
func (a *API) setBusy(w http.ResponseWriter, req *http.Request) {
	data, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBusyBody))
	if err != nil {
		a.fail(w, badBody(err), strictjson.Explain(err, nil))
		return
	}
	// The body changes the present thresholds of its model.
	var named struct {
		Model string `json:"model"`
	}
	_ = json.Unmarshal(data, &named) // decodeBusy reports what is wrong
	b, err := a.router.Busy(named.Model)
	if err != nil {
		a.fail(w, a.service.status(err), err)
		return
	}
	if err := decodeBusy(data, &b); err != nil {
		a.fail(w, http.StatusBadRequest, err)
		return
	}
	if err := a.router.SetBusy(named.Model, b); err != nil {
		a.fail(w, http.StatusBadRequest, fmt.Errorf("busy thresholds: %w", err))
		return
	}
	a.answerBusy(w, named.Model)
}

// decodeBusy changes the thresholds that a body names.
func decodeBusy(data []byte, b *schedule.BusyThresholds) error {
	// The decoder writes through pointers, so it gets copies.
	var body struct {
		busyAnswer
		Model *string `json:"model"`
	}
	body.busyAnswer = busyAnswer{clone(b.DecodeBlocks), clone(b.PrefillTokens), clone(b.PrefillFraction)}
	if err := strictjson.Decode(bytes.NewReader(data), &body, "thresholds", nil); err != nil {
		return err
	}
	*b = schedule.BusyThresholds{DecodeBlocks: body.DecodeBlocks, PrefillTokens: body.PrefillTokens, PrefillFraction: body.PrefillFraction}
	return nil
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
