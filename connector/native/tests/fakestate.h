/* What the files of the fake driver share. `lock` guards everything. */
#ifndef FAKESTATE_H
#define FAKESTATE_H

#define _GNU_SOURCE
#include "../cuda.h"
#include "fakecuda.h"

#define CONTEXT ((CUcontext)(uintptr_t)77)
#define MAX_ITEMS 4096
#define MAX_STREAMS 8
#define MAX_RANGES 64
#define POISON 0xdd
#define INVALID_VALUE 1
#define OUT_OF_MEMORY 2
#define INVALID_DEVICE 101
#define INVALID_CONTEXT 201
#define ILLEGAL_ADDRESS 700
#define ALREADY_REGISTERED 712
#define CAPTURE_UNSAFE 900

struct CUevent_st {
	uint64_t asked, reached; /* records */
};

struct item {
	enum { COPY, RECORD, WAIT, KERNEL, GATE, HOST } kind;
	struct CUevent_st *event;
	uint64_t record;
	uint64_t *to, *from, to_one, from_one;
	size_t *sizes, size_one, count;
	int single; /* not of a batch */
	struct CUmemcpyAttributes *attributes;
	uint8_t *early; /* bytes that were read before their turn */
	void (*kernel)(void *);
	void *argument;
};

struct CUstream_st {
	struct item items[MAX_ITEMS];
	size_t first, last;
	int busy, capturing;
};

struct range {
	uint64_t at, bytes;
};

extern pthread_mutex_t lock;
extern pthread_cond_t change;
extern struct CUstream_st *streams[MAX_STREAMS];
extern struct range pinned[MAX_RANGES], device[MAX_RANGES];
extern int pinned_count, device_count;
extern struct fake fake;
/* Holds the lock. Waits while pinning is held. */
void pass_pin_gate(void);

int inside(const struct range *ranges, int count, uint64_t at, uint64_t bytes);
int touches(const struct range *ranges, int count, uint64_t at, uint64_t bytes);
/* Waits until no item can run. */
void settle(void);
void push(struct CUstream_st *stream, struct item item);

/* The checks in front of each call. unsafe: a call that breaks another thread's capture. Takes the
 * lock if the result is 0. leave() releases the lock. */
CUresult enter(int unsafe);
CUresult leave(CUresult result);
/* These hold the lock. finish() waits until a stream is empty. new_stream(): NULL without room. */
void finish(const struct CUstream_st *stream);
CUstream new_stream(void);
CUresult add_range(struct range *ranges, int *count, uint64_t at, size_t bytes);
/* Removes the range that begins at an address. */
CUresult drop_range(struct range *ranges, int *count, uint64_t at);

#endif
