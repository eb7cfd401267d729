package schedule

import "errors"

// Errors of Schedule that callers tell apart with errors.Is; those of package
// load come through too.
var (
	// ErrNoEndpoints: there is no worker to choose from, or none of those that
	// the request may go to.
	ErrNoEndpoints = errors.New("no workers")
	// ErrAllFiltered: there are workers, and none has the required taints.
	ErrAllFiltered = errors.New("no worker has the required taints")
	// ErrAllOverloaded: every worker that the request may go to is beyond a busy
	// threshold.
	ErrAllOverloaded = errors.New("all eligible workers are overloaded")
	// ErrPinnedOverloaded: the worker that the request is pinned to is beyond a
	// busy threshold.
	ErrPinnedOverloaded = errors.New("the pinned worker is overloaded")
	// ErrPinnedNotAllowed: the worker that the request is pinned to is not among
	// the allowed ones, or has not the required taints.
	ErrPinnedNotAllowed = errors.New("the pinned worker is not allowed")
	// ErrOverride: a request replaces a setting that is not looked at.
	ErrOverride = errors.New("has no effect with score cost")
	// ErrBadSelection: a selector chose a member that is no candidate.
	ErrBadSelection = errors.New("the selector chose no candidate")
)
