// Package admission decides which waiting requests go on to the workers of a model when as
// many are in progress as may be: strict priorities first, then fair shares of tenants.
//
//	queue, err := admission.New(admission.Limits{Running: 64})
//	release, err := queue.Enter(ctx, admission.Request{Tenant: "a", Weight: 1, Tokens: 900, Bytes: 4096})
//	defer release()
//
// Each tenant has its own queue for each priority, by Request.Order and then in the order of arrival. Enter lets the
// requests of the highest priority go first. Among the tenants of one priority it shares
// tokens by weight with deficit round robin: a tenant with weight 2 gets twice the tokens
// of a tenant with weight 1 while both wait. A tenant that does not wait saves nothing up.
//
// Guarantees: at most Limits.Running requests are between Enter and release; a request goes
// on at once while fewer are and none waits; a waiting request goes on, or gets an error
// when ctx ends, its time is over or a queue is full. Each Enter without an error needs
// one release; further calls of release do nothing.
//
// Bounds: waiting requests and their bytes, by tenant and in all, and the time to wait. A
// tenant whose own queue is full gets ErrTenantFull, everybody gets ErrFull when the whole
// queue is.
//
// A Queue may be used from any goroutine. Nothing runs in the background.
package admission
