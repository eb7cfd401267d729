package shape

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
)

// dumpWriteTimeout bounds how long a client may take to read a piece of a dump.
const dumpWriteTimeout = 30 * time.Second

// Dump answers with the events of each model that make an empty index equal to the router's.
// partition returns MODEL:GROUP for the router's name of a model. The answer is one JSON object,
// written while the index is read: one without the closing brace was interrupted.
func (j *JSON) Dump(w http.ResponseWriter, r *router.Router, partition func(model string) string) {
	w.Header().Set("Content-Type", "application/json")
	c := http.NewResponseController(w)
	defer func() { _ = c.SetWriteDeadline(time.Time{}) }() // the next request must not inherit it
	out := bufio.NewWriterSize(deadlined{w, c}, 64<<10)
	encoder := json.NewEncoder(out)
	var failed error
	separator := "{" // before the first model, and a comma later
	for _, m := range r.Models("") {
		if failed != nil {
			break
		}
		key, err := json.Marshal(partition(m.Key().Name))
		if err != nil {
			failed = err
			break
		}
		_, failed = fmt.Fprintf(out, `%s%s:{"block_size":%d,"events":[`, separator, key, m.Key().BlockSize)
		separator = ","
		var event kvevent.StoredJSON
		var id uint64
		m.Decide().DumpEvents(func(e *kvevent.RouterEvent) bool {
			if e.Group != 0 { // Dynamo's form has no KV groups
				return true
			}
			event.Set(e)
			event.Event.ID = id
			if id > 0 && failed == nil {
				failed = out.WriteByte(',')
			}
			id++
			if failed == nil {
				failed = encoder.Encode(&event)
			}
			return failed == nil
		})
		if failed == nil {
			_, failed = out.WriteString("]}")
		}
	}
	if separator == "{" && failed == nil {
		failed = out.WriteByte('{')
	}
	if failed == nil {
		_, failed = out.WriteString("}\n")
	}
	if failed == nil {
		failed = out.Flush()
	}
	if failed != nil {
		j.log.Debug("dump is not delivered", zap.Error(failed))
	}
}

// deadlined gives the client dumpWriteTimeout for each write.
type deadlined struct {
	http.ResponseWriter
	c *http.ResponseController
}

// Write implements io.Writer.
func (d deadlined) Write(b []byte) (int, error) {
	if err := d.c.SetWriteDeadline(time.Now().Add(dumpWriteTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return d.ResponseWriter.Write(b)
}
