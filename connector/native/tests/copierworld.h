/* A copier for tests, with one extent, and the agent's LOADs for it. */
#ifndef COPIERWORLD_H
#define COPIERWORLD_H

#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define SLOTS 64
#define BLOCKS 96
#define PAGES 3
#define PAGE 4160 /* not a power of two: heads and tails */
#define SLOT (PAGES * PAGE)
#define GROUPS 2
#define JOBS 600

struct world {
	uint8_t *kv, *slots;
	uint64_t words[SLOTS];
	struct by_plan *plan;
	struct by_extents *table;
	struct by_copier *copier;
	_Atomic int stop;
};

static inline struct world make(uint32_t threads)
{
	uint64_t seed = 1;
	struct world w = {.kv = malloc(BLOCKS * SLOT), .slots = malloc(SLOTS * SLOT)};
	struct by_page pages[PAGES];
	struct by_backend backend;
	CHECK(w.kv && w.slots);
	fill(&seed, w.kv, BLOCKS * SLOT);
	fill(&seed, w.slots, SLOTS * SLOT);
	for (uint32_t n = 0; n < PAGES; n++)
		pages[n] = (struct by_page){(uintptr_t)w.kv + n * BLOCKS * PAGE, PAGE, PAGE,
					    n * PAGE, n == PAGES - 1, 0};
	for (uint32_t n = 0; n < SLOTS; n++)
		w.words[n] = 7;
	w.plan = by_plan_new(pages, PAGES, GROUPS, BLOCKS);
	w.table = by_extents_new();
	CHECK(w.plan && w.table);
	by_memory_backend(&backend, w.plan);
	backend.load_bytes = backend.store_bytes = 4 * SLOT;
	w.copier = by_copier_new(w.plan, w.table, &backend, -1);
	CHECK(w.copier && (!threads || !by_copier_start(w.copier, threads, "test")));
	return w;
}

static inline void map(struct world *w)
{
	CHECK(!by_extents_set(w->table, 5, (uintptr_t)w->words, (uintptr_t)w->slots, SLOTS, SLOT));
	by_copier_remapped(w->copier);
}

static inline void end(struct world *w)
{
	by_copier_free(w->copier);
	by_extents_free(w->table);
	by_plan_free(w->plan);
	free(w->kv);
	free(w->slots);
}

/* A job of 8 slots from `first` on, into or from the blocks from `first` on. */
static inline int add(struct world *w, uint64_t number, uint32_t kind, uint32_t group, uint32_t first,
	       uint64_t generation)
{
	struct by_slot slots[8];
	uint32_t blocks[GROUPS * 8];
	uint32_t lists = group == BY_ALL_GROUPS ? GROUPS : 1;
	for (uint32_t n = 0; n < 8; n++) {
		slots[n] = (struct by_slot){5, first + n, generation};
		for (uint32_t g = 0; g < lists; g++)
			blocks[8 * g + n] = first + 7 - n;
	}
	struct by_job job = {number, kind, group, 8, 8 * lists, slots, blocks, 0, 2000000};
	return by_copier_add(w->copier, &job);
}

/* Waits for the end of the job, and returns whether it succeeded. */
static inline int wait_end(struct world *w, uint64_t number)
{
	struct by_end got;
	while (!by_copier_take(w->copier, &got, 1))
		nap(20000);
	CHECK(got.number == number);
	return (int)got.ok;
}

/* A LOAD of one slot of extent 5 at generation 7. load() fills in job, slot, block and group. */
static const uint8_t load_frame[] = {
	'B', 'Y', 'D', '1', 27, 0, 0, 0, 0, 0, 0, 0, 58, 0, 0, 0,
	0x84, 0xa3, 'j', 'o', 'b', 0xcf, 0, 0, 0, 0, 0, 0, 0, 0,
	0xa5, 's', 'l', 'o', 't', 's', 0xc4, 16, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0,
	0xa6, 'b', 'l', 'o', 'c', 'k', 's', 0xc4, 4, 0, 0, 0, 0,
	0xa5, 'g', 'r', 'o', 'u', 'p', 0,
};

/* The agent's LOAD of slot n into block n of a group, below 128. */
static inline void load(int socket, uint64_t job, uint8_t n, uint8_t group)
{
	uint8_t frame[sizeof load_frame];
	memcpy(frame, load_frame, sizeof frame);
	for (int byte = 0; byte < 8; byte++)
		frame[22 + byte] = (uint8_t)(job >> 8 * (7 - byte));
	frame[42] = frame[63] = n;
	frame[73] = group;
	CHECK(send(socket, frame, sizeof frame, 0) == sizeof frame);
}

#endif
