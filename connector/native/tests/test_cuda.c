/*
 * cuda.c with the fake driver, through a copier with its own thread. Each test is a rule at the head
 * of cuda.c. tests/mutants.py puts each hazard back into cuda.c, and one of these tests must fail.
 *
 *     test_cuda LIBCUDA [SEED]
 */
#include "check.h"
#include "fakecuda.h"

#include <pthread.h>

#define BLOCKS 64
#define SLOTS 64
#define LAYERS 4

struct world {
	size_t page, slot;
	uint8_t *kv, *slots;
	uint64_t words[SLOTS];
	struct by_plan *plan;
	struct by_extents *table;
	struct by_cuda *cuda;
	struct by_copier *copier;
	void *engine; /* the engine's stream */
};

static const char *library;
static uint64_t seed = 1, numbers = 1;

int cuStreamCreate(void **out, unsigned int flags);
int cuStreamDestroy_v2(void *stream);

static void *pin_all(void *of)
{
	struct world *w = of;
	/* Pieces of 4 slots: runs of a block-first layout reach over their ends. */
	for (uint32_t at = 0; at < SLOTS; at += 4)
		CHECK(!by_cuda_pin(w->cuda, (uintptr_t)w->slots + at * w->slot, 4 * w->slot));
	return NULL;
}

static void on_a_thread(void *(*call)(void *), void *argument)
{
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, call, argument));
	pthread_join(thread, NULL);
}

/* layers 1 is a block-first layout: a slot is one page. */
static struct world make(uint32_t layers, size_t page)
{
	struct world w = {.page = page, .slot = layers * page};
	struct by_page pages[LAYERS];
	struct by_backend backend;
	char text[BY_TEXT] = "";
	fake_reset(seed++);
	fake_context(1);
	w.kv = malloc(BLOCKS * w.slot);
	w.slots = malloc(SLOTS * w.slot);
	CHECK(w.kv && w.slots);
	fill(&seed, w.kv, BLOCKS * w.slot);
	fill(&seed, w.slots, SLOTS * w.slot);
	fake_device(w.kv, BLOCKS * w.slot);
	for (uint32_t n = 0; n < layers; n++)
		pages[n] = (struct by_page){(uintptr_t)w.kv + n * BLOCKS * page, page, page,
					    n * page, 0, 0};
	for (uint32_t n = 0; n < SLOTS; n++)
		w.words[n] = 7;
	w.plan = by_plan_new(pages, layers, 1, BLOCKS);
	w.table = by_extents_new();
	w.cuda = by_cuda_new(library, w.plan, text);
	if (!w.cuda)
		fprintf(stderr, "%s\n", text);
	CHECK(w.plan && w.table && w.cuda);
	CHECK(!cuStreamCreate(&w.engine, 0));
	by_cuda_backend(&backend, w.cuda);
	w.copier = by_copier_new(w.plan, w.table, &backend, -1);
	return w;
}

static void start(struct world *w, int pinned)
{
	CHECK(!by_extents_set(w->table, 0, (uintptr_t)w->words, (uintptr_t)w->slots, SLOTS,
			      w->slot));
	if (pinned)
		on_a_thread(pin_all, w);
	CHECK(!by_copier_start(w->copier, 1, "copy"));
}

static void end(struct world *w)
{
	by_copier_free(w->copier);
	by_cuda_free(w->cuda);
	cuStreamDestroy_v2(w->engine);
	by_extents_free(w->table);
	by_plan_free(w->plan);
	free(w->kv);
	free(w->slots);
}

/* Adds a job of `count` slots from `slot` on and blocks from `block` on. Returns its number. */
static uint64_t add(struct world *w, uint32_t kind, uint32_t slot, uint32_t block, uint32_t count,
		    uint64_t fence)
{
	struct by_slot slots[SLOTS];
	uint32_t blocks[SLOTS];
	for (uint32_t n = 0; n < count; n++) {
		slots[n] = (struct by_slot){0, slot + n, 7};
		blocks[n] = block + n;
	}
	struct by_job job = {numbers++, kind, BY_ALL_GROUPS, count, count, slots, blocks, fence, 0};
	CHECK(!by_copier_add(w->copier, &job));
	return job.number;
}

static uint64_t fence(struct world *w)
{
	char text[BY_TEXT] = "";
	uint64_t made = by_cuda_fence(w->cuda, (uintptr_t)w->engine, text);
	CHECK(made);
	return made;
}

/* Waits for the copier to have begun its jobs, and for the device to have nothing to run. */
static void settle(struct world *w)
{
	uint32_t queued = 1, flying, held;
	while (queued) {
		by_copier_load(w->copier, &queued, &flying, &held);
		nap(50000);
	}
	nap(2000000);
	fake_settle();
}

static struct by_end wait_end(struct world *w)
{
	struct by_end got;
	double until = seconds() + 30;
	while (!by_copier_take(w->copier, &got, 1)) {
		CHECK(seconds() < until);
		nap(50000);
	}
	if (!got.ok)
		fprintf(stderr, "job %llu: %s\n", (unsigned long long)got.number, got.text);
	return got;
}

static int equal(struct world *w, uint32_t slot, uint32_t block, uint32_t count)
{
	for (uint32_t n = 0; n < count; n++)
		for (size_t p = 0; p < w->slot / w->page; p++)
			if (memcmp(w->slots + (slot + n) * w->slot + p * w->page,
				   w->kv + (p * BLOCKS + block + n) * w->page, w->page))
				return 0;
	return 1;
}

static int poisoned(const uint8_t *at, size_t bytes)
{
	for (size_t n = 0; n < bytes; n++)
		if (at[n] != 0xdd)
			return 0;
	return 1;
}

/* The engine's step: writes every byte of the KV. */
static void step(void *of)
{
	struct world *w = of;
	static uint64_t content = 5;
	for (size_t n = 0; n < BLOCKS * w->slot; n++)
		w->kv[n] = (uint8_t)(content * 7 + n * 13);
	content++;
}

static void check_hazards(void)
{
	CHECK(!fake_state()->captures_broken);
	CHECK(!fake_state()->calls_that_waited);
	CHECK(!fake_state()->pins_on_copy_threads);
	CHECK(!fake_state()->sticky);
}

static void every_byte_arrives(void)
{
	for (uint32_t layers = 1; layers <= LAYERS; layers += LAYERS - 1)
		for (int pinned = 0; pinned < 2; pinned++) {
			struct world w = make(layers, 1000);
			start(&w, pinned);
			add(&w, BY_STORE, 3, 7, 30, fence(&w));
			CHECK(wait_end(&w).ok && equal(&w, 3, 7, 30));
			add(&w, BY_LOAD, 3, 20, 30, fence(&w));
			CHECK(wait_end(&w).ok && equal(&w, 3, 20, 30));
			uint64_t batches, singles;
			by_cuda_calls(w.cuda, &batches, &singles);
			CHECK(pinned ? batches == 2 && !singles : !batches && singles);
			check_hazards();
			end(&w);
		}
}

static void a_store_reads_what_the_step_wrote(void)
{
	for (int pinned = 0; pinned < 2; pinned++) {
		struct world w = make(LAYERS, 500);
		struct by_end got;
		start(&w, pinned);
		fake_gate(w.engine);
		fake_kernel(w.engine, step, &w);
		add(&w, BY_STORE, 0, 0, 40, fence(&w));
		settle(&w);
		CHECK(!by_copier_take(w.copier, &got, 1)); /* the step has not run */
		fake_open();
		CHECK(wait_end(&w).ok && equal(&w, 0, 0, 40));
		check_hazards();
		end(&w);
	}
}

static void a_load_waits_for_the_step_that_still_uses_its_blocks(void)
{
	struct world w = make(LAYERS, 500);
	start(&w, 1);
	fake_gate(w.engine);
	fake_kernel(w.engine, step, &w);
	add(&w, BY_LOAD, 0, 0, 40, fence(&w));
	settle(&w);
	CHECK(poisoned(w.kv, w.page)); /* asked for, and not copied */
	fake_open();
	CHECK(wait_end(&w).ok && equal(&w, 0, 0, 40));
	end(&w);
}

static void a_load_overtakes_a_store_that_waits(void)
{
	struct world w = make(LAYERS, 500);
	start(&w, 1);
	fake_gate(w.engine);
	uint64_t store = add(&w, BY_STORE, 0, 0, 8, fence(&w));
	settle(&w); /* else the copier may begin the load first */
	uint64_t load = add(&w, BY_LOAD, 20, 20, 8, 0);
	CHECK(wait_end(&w).number == load);
	fake_open();
	CHECK(wait_end(&w).number == store);
	end(&w);
}

static void many_jobs_in_flight_keep_their_arrays(void)
{
	struct world w = make(LAYERS, 300);
	start(&w, 1);
	fake_gate(w.engine);
	for (uint32_t n = 0; n < 12; n++)
		add(&w, n % 2, 4 * n, 4 * n, 4, fence(&w));
	settle(&w);
	fake_open();
	for (uint32_t n = 0; n < 12; n++)
		CHECK(wait_end(&w).ok);
	CHECK(equal(&w, 0, 0, 48));
	check_hazards();
	end(&w);
}

static void a_call_has_at_most_64_mib(void)
{
	struct world w = make(1, 3 << 19);
	start(&w, 1);
	struct by_backend backend;
	by_copier_free(w.copier);
	by_cuda_backend(&backend, w.cuda);
	backend.load_bytes *= 2; /* a piece of 67 MiB */
	w.copier = by_copier_new(w.plan, w.table, &backend, -1);
	CHECK(!by_copier_start(w.copier, 1, "copy"));
	add(&w, BY_LOAD, 0, 0, 45, 0);
	CHECK(wait_end(&w).ok && equal(&w, 0, 0, 45));
	end(&w);
}

static void *pin_first(void *of)
{
	struct world *w = of;
	CHECK(!by_cuda_pin(w->cuda, (uintptr_t)w->slots, 40 * w->slot));
	return NULL;
}

static void no_copy_waits_for_a_pin(void)
{
	struct world w = make(LAYERS, 500);
	uint64_t batches, singles;
	pthread_t pinner;
	double until = seconds() + 30;
	start(&w, 0);
	uint64_t before = fence(&w);
	fake_hold_pins(1);
	CHECK(!pthread_create(&pinner, NULL, pin_first, &w));
	for (; !fake_held_pins(); nap(50000))
		CHECK(seconds() < until);
	add(&w, BY_LOAD, 3, 20, 30, before);
	CHECK(wait_end(&w).ok && equal(&w, 3, 20, 30));
	add(&w, BY_STORE, 3, 7, 30, fence(&w));
	CHECK(wait_end(&w).ok && equal(&w, 3, 7, 30));
	by_cuda_calls(w.cuda, &batches, &singles);
	CHECK(fake_held_pins() && !batches && singles);
	fake_hold_pins(0);
	pthread_join(pinner, NULL);
	add(&w, BY_LOAD, 3, 0, 30, 0);
	CHECK(wait_end(&w).ok && equal(&w, 3, 0, 30));
	by_cuda_calls(w.cuda, &batches, &singles);
	CHECK(batches == 1);
	check_hazards();
	end(&w);
}

static void *use_all(void *of)
{
	struct world *w = of;
	struct by_end got;
	CHECK(!by_cuda_unpin(w->cuda, (uintptr_t)w->slots)); /* the first piece is unpinned now */
	add(w, BY_LOAD, 0, 0, 8, 0);
	got = wait_end(w);
	CHECK(got.ok);
	add(w, BY_STORE, 20, 8, 8, 0);
	CHECK(wait_end(w).ok);
	CHECK(!by_cuda_pin(w->cuda, (uintptr_t)w->slots, 4 * w->slot));
	return NULL;
}

static void a_capture_of_the_engine_stays_whole(void)
{
	struct world w = make(LAYERS, 500);
	char text[BY_TEXT] = "";
	start(&w, 1);
	fake_capture(w.engine, 1);
	CHECK(!by_cuda_fence(w.cuda, (uintptr_t)w.engine, text));
	CHECK(strstr(text, "capturing"));
	on_a_thread(use_all, &w);
	CHECK(!fake_state()->captures_broken);
	fake_capture(w.engine, 0);
	CHECK(equal(&w, 0, 0, 8) && equal(&w, 20, 8, 8));
	end(&w);
}

static void a_refused_batch_fails_the_job(void)
{
	struct world w = make(LAYERS, 500);
	start(&w, 1);
	fake_state()->fail_batches = 1;
	add(&w, BY_LOAD, 0, 0, 8, 0);
	struct by_end got = wait_end(&w);
	CHECK(!got.ok && strstr(got.text, "CUDA error 1"));
	fake_state()->fail_batches = 0;
	add(&w, BY_LOAD, 0, 0, 8, 0);
	CHECK(wait_end(&w).ok);
	end(&w);
}

static void after_a_sticky_error_every_job_ends(void)
{
	struct world w = make(LAYERS, 500);
	start(&w, 1);
	fake_gate(w.engine);
	add(&w, BY_STORE, 0, 0, 8, fence(&w));
	settle(&w);
	fake_state()->sticky = 700;
	add(&w, BY_LOAD, 20, 20, 8, 0);
	for (int n = 0; n < 2; n++) {
		struct by_end got = wait_end(&w);
		CHECK(!got.ok && strstr(got.text, "CUDA error 700"));
	}
	fake_state()->sticky = 0;
	fake_open();
	end(&w);
}

int main(int count, char **given)
{
	library = count > 1 ? given[1] : "libcuda.so.1";
	seed = count > 2 ? strtoull(given[2], NULL, 10) : 1;
	every_byte_arrives();
	a_store_reads_what_the_step_wrote();
	a_load_waits_for_the_step_that_still_uses_its_blocks();
	a_load_overtakes_a_store_that_waits();
	many_jobs_in_flight_keep_their_arrays();
	a_call_has_at_most_64_mib();
	no_copy_waits_for_a_pin();
	a_capture_of_the_engine_stays_whole();
	a_refused_batch_fails_the_job();
	after_a_sticky_error_every_job_ends();
	puts("test_cuda: ok");
	return 0;
}
