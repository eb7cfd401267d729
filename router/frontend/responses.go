package frontend

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// pinnedResponse forwards a request about a stored response to its worker.
func (d *Door) pinnedResponse(w http.ResponseWriter, r *http.Request) {
	q := d.newRequest(w, r, openai.Other)
	ctx := d.trace(q)
	defer d.finish(q)
	leave, refused := d.enter(q)
	if refused != nil {
		d.refuse(q, refused)
		return
	}
	defer leave()
	at := d.responses.Worker(q.tenant, r.PathValue("id"))
	var worker *workers.Worker
	if at != nil {
		worker, _ = d.options.Workers.Worker(at.ID)
	}
	if worker == nil {
		d.refuse(q, noResponse())
		return
	}
	b := &booking{worker: worker}
	b.match.Worker = *at
	if result := d.try(ctx, q, b); result.err != nil && !result.committed {
		d.refuse(q, result.refusal(ctx, false))
	}
}

func noResponse() *refusal {
	return responseNotFound.refusal("no worker of this router has the response")
}

// listModels answers GET /v1/models with the models of all workers.
func (d *Door) listModels(w http.ResponseWriter, r *http.Request) {
	q := d.newRequest(w, r, openai.Other)
	defer d.finish(q)
	if refused := d.identify(q); refused != nil {
		d.refuse(q, refused)
		return
	}
	list := openai.ModelList{Object: "list", Data: []openai.ModelEntry{}}
	for _, m := range d.options.Workers.Models() {
		list.Data = append(list.Data, openai.ModelEntry{ID: m.Name, Object: "model", OwnedBy: "blockyard", Root: m.Name, Parent: m.Base, MaxLen: m.MaxLen})
	}
	q.record.status = http.StatusOK
	d.answer(w, http.StatusOK, list)
}

// health answers GET /health: 200 while a worker takes requests.
func (d *Door) health(w http.ResponseWriter, _ *http.Request) {
	if err := d.Ready(); err != nil {
		d.answer(w, http.StatusServiceUnavailable, map[string]string{"status": err.Error()})
		return
	}
	d.answer(w, http.StatusOK, map[string]string{"status": "ok"})
}

var errNoneReady = errors.New("no worker takes requests")

// Ready returns why no request can be served; nil when one can.
func (d *Door) Ready() error {
	if err := d.options.Router.Ready(); err != nil {
		return err
	}
	for _, w := range d.options.Workers.Workers() {
		if w.State == workers.Ready {
			return nil
		}
	}
	return errNoneReady
}

// answer writes JSON.
func (d *Door) answer(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("BUG: answer %T cannot be encoded: %v", body, err))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A client that has gone does not read the answer.
	_, _ = w.Write(b)
}
