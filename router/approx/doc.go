// Package approx predicts which blocks workers hold from where requests were
// sent. It serves workers that publish no events, and the time until the events
// of a decision arrive.
package approx
