// Package memory keeps what the front door learns from requests that have ended.
//
//   - Deaths: requests that were at a worker when it died. A request that was at two deaths is refused.
//   - Lengths: mean numbers of output tokens, by tenant and model.
//   - Responses: which worker has a stored response of /v1/responses, and which tenant the response belongs to.
//
// Each memory is bounded, safe for concurrent use, lost with the process, and starts no goroutine. The oldest death
// or response makes room; a new pair of tenant and model uses the mean of its model.
package memory
