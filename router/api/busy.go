package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/strictjson"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// busyAnswer has the busy thresholds; null is no threshold.
type busyAnswer struct {
	DecodeBlocks    *float64 `json:"active_decode_blocks_threshold"`
	PrefillTokens   *int64   `json:"active_prefill_tokens_threshold"`
	PrefillFraction *float64 `json:"active_prefill_tokens_threshold_frac"`
}

// maxBusyBody bounds the body of POST /busy_threshold, in bytes.
const maxBusyBody = 1 << 16

// busy answers GET /busy_threshold: the thresholds of a model, or of models opened later.
func (a *API) busy(w http.ResponseWriter, req *http.Request) {
	a.answerBusy(w, req.URL.Query().Get("model"))
}

// answerBusy sends the client the busy thresholds of a model. An empty name means the
// thresholds of models opened later.
func (a *API) answerBusy(w http.ResponseWriter, model string) {
	b, err := a.router.Busy(model)
	if err != nil {
		a.fail(w, a.service.status(err), err)
		return
	}
	a.answer(w, http.StatusOK, &busyAnswer{b.DecodeBlocks, b.PrefillTokens, b.PrefillFraction})
}

// setBusy answers POST /busy_threshold. It changes the thresholds in the body for one model,
// or for all models and models opened later.
func (a *API) setBusy(w http.ResponseWriter, req *http.Request) {
	data, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBusyBody))
	if err != nil {
		a.fail(w, badBody(err), strictjson.Explain(err, nil))
		return
	}
	// The body is decoded twice. The model comes first, because thresholds that the body does
	// not name keep the values of that model.
	var named struct {
		Model string `json:"model"`
	}
	_ = json.Unmarshal(data, &named) // decodeBusy reports the error
	control.About(req, fmt.Sprintf("busy thresholds, model %.64q", named.Model))
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

// decodeBusy decodes the JSON in data into b. Thresholds that data does not name keep their
// values in b, and null removes a threshold. b is unchanged after an error.
func decodeBusy(data []byte, b *schedule.BusyThresholds) error {
	// The decoder writes through pointers, and those of b are shared with the router.
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

// clone returns a pointer to a copy, nil for nil.
func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
