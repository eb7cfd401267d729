/* How a test drives the fake driver. */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stddef.h>
#include <stdint.h>

/* What a test sets and reads. */
struct fake {
	_Atomic int sticky;      /* every call fails with this error from now on */
	_Atomic int capturing;   /* a thread of the engine captures a graph */
	_Atomic int fail_batches; /* batch calls are refused */
	_Atomic int damages;     /* each copy changes one byte */
	_Atomic int overtakes;   /* streams do not wait for events */
	size_t batch_limit;      /* bytes of one batch call; more are refused */
	int captures_broken;     /* calls that would have broken the capture */
	int calls_that_waited;   /* copies of unpinned memory that waited for other work */
	int pins_on_copy_threads;
	uint64_t copied;         /* bytes */
};

struct fake *fake_state(void);
/* Begins anew, as cuInit() does. seed: of the order of streams.
 *
 * A program without these calls sets FAKECUDA_FAULT to "damages" or "overtakes". */
void fake_reset(uint64_t seed);
/* Declares device memory. */
void fake_device(void *at, size_t bytes);
/* Queues work of the engine, or an item that waits for fake_open(). */
void fake_kernel(void *stream, void (*kernel)(void *), void *argument);
void fake_gate(void *stream);
void fake_open(void);
/* Makes pinning wait, or lets it go on. */
void fake_hold_pins(int on);
/* Calls of cuMemHostRegister() that wait now. */
int fake_held_pins(void);
/* Waits until no work can run: the rest waits for a gate. */
void fake_settle(void);
/* Begins or ends a capture of the engine's stream. */
void fake_capture(void *stream, int on);
/* Gives the calling thread a context, or takes the context away. */
void fake_context(int on);

#endif
