/*
 * Several threads use one copier at once. Python's tests check the order and the rules; this
 * program gives the sanitizers every interleaving that they can get: adding, taking, dropping,
 * changing the table and counting, while threads copy.
 */
#include "copierworld.h"

static void bytes_come_to_their_places(void)
{
	struct world w = make(4);
	map(&w);
	for (uint32_t kind = BY_LOAD; kind <= BY_STORE; kind++) {
		CHECK(!add(&w, 10 + kind, kind, BY_ALL_GROUPS, 8 * (kind + 1), 7));
		CHECK(wait_end(&w, 10 + kind));
		for (uint32_t n = 0; n < 8; n++)
			for (uint32_t p = 0; p < PAGES; p++) {
				uint32_t first = 8 * (kind + 1);
				uint8_t *kv = w.kv + (p * BLOCKS + first + 7 - n) * PAGE;
				CHECK(!memcmp(kv, w.slots + (first + n) * SLOT + p * PAGE, PAGE));
			}
	}
	end(&w);
}

static void a_group_copies_its_own_pages(void)
{
	struct world w = make(2);
	uint8_t before[SLOT];
	map(&w);
	memcpy(before, w.slots, SLOT);
	CHECK(!add(&w, 1, BY_STORE, 1, 0, 7));
	CHECK(wait_end(&w, 1));
	CHECK(!memcmp(w.slots, before, 2 * PAGE));
	CHECK(!memcmp(w.slots + 2 * PAGE, w.kv + (2 * BLOCKS + 7) * PAGE, PAGE));
	CHECK(add(&w, 2, BY_STORE, 2, 0, 7) == -22); /* no such group */
	end(&w);
}

static void an_end_says_when_the_copy_began(void)
{
	struct world w = make(0);
	struct by_end got;
	map(&w);
	CHECK(!add(&w, 1, BY_LOAD, BY_ALL_GROUPS, 0, 7));
	uint64_t before = (uint64_t)(seconds() * 1e9);
	nap(1000000);
	while (!by_copier_take(w.copier, &got, 1))
		by_copier_step(w.copier);
	CHECK(got.ok && got.began_ns > before && got.began_ns <= (uint64_t)(seconds() * 1e9) + 1000);
	CHECK(!add(&w, 2, BY_LOAD, BY_ALL_GROUPS, 0, 8)); /* another generation */
	while (!by_copier_take(w.copier, &got, 1))
		by_copier_step(w.copier);
	CHECK(!got.ok && !got.began_ns);
	end(&w);
}

static void a_job_is_added_once(void)
{
	struct world w = make(1);
	map(&w);
	CHECK(!add(&w, 1, BY_LOAD, BY_ALL_GROUPS, 0, 7));
	CHECK(add(&w, 1, BY_LOAD, BY_ALL_GROUPS, 0, 7) == -17);
	CHECK(wait_end(&w, 1));
	CHECK(add(&w, 1, BY_LOAD, BY_ALL_GROUPS, 0, 7) == -17);
	for (uint64_t n = 2; n < 2 + 2048; n++) {
		CHECK(!add(&w, n, BY_LOAD, BY_ALL_GROUPS, 0, 7));
		CHECK(wait_end(&w, n));
	}
	CHECK(!add(&w, 1, BY_LOAD, BY_ALL_GROUPS, 0, 7));
	CHECK(wait_end(&w, 1));
	end(&w);
}

static void the_ring_has_room_for_every_job(void)
{
	struct world w = make(2);
	struct by_end got[64];
	uint32_t count = 0;
	map(&w);
	for (uint64_t n = 0; n < BY_MAX_JOBS; n++)
		CHECK(!add(&w, n, BY_LOAD, 1, 0, 6)); /* fails at once: wrong generation */
	CHECK(add(&w, BY_MAX_JOBS, BY_LOAD, 1, 0, 6) == -11);
	while (count < BY_MAX_JOBS) {
		uint32_t n = by_copier_take(w.copier, got, 64);
		for (uint32_t at = 0; at < n; at++)
			CHECK(got[at].number == count + at && !got[at].ok && got[at].text[0]);
		count += n;
	}
	CHECK(!by_copier_busy(w.copier));
	end(&w);
}

static void *disturb(void *of)
{
	struct world *w = of;
	uint64_t seed = 3;
	struct by_counts counts;
	uint32_t a, b, c;
	while (!atomic_load(&w->stop)) {
		switch (random_below(&seed, 4)) {
		case 0:
			by_extents_drop(w->table, 5);
			map(w);
			break;
		case 1:
			by_copier_drop(w->copier, "dropped");
			break;
		case 2:
			by_copier_counts(w->copier, &counts);
			break;
		default:
			by_copier_load(w->copier, &a, &b, &c);
		}
		nap(100000);
	}
	return NULL;
}


static void *pump(void *of)
{
	CHECK(by_pump(of, -1) == BY_PUMP_WAKE);
	return NULL;
}

static void every_job_ends_once(void)
{
	struct world w = make(4);
	pthread_t others[2];
	int ends[2];
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	struct by_pump pumped = {.copier = w.copier, .socket = ends[0], .early = 1,
				 .session = 3, .patience_ns = 2000000,
				 .wake = eventfd(0, EFD_NONBLOCK)};
	uint64_t seed = 2, frames = 0, one = 1;
	static uint8_t ended[JOBS];
	static int place[JOBS];
	int taken[4] = {0}; /* regions of slots and blocks: jobs at the same time share none */
	struct by_end got[16];
	uint32_t added = 0, count = 0;
	map(&w);
	CHECK(!pthread_create(&others[0], NULL, disturb, &w));
	CHECK(!pthread_create(&others[1], NULL, pump, &pumped));
	double until = seconds() + 60;
	while (count < JOBS) {
		CHECK(seconds() < until);
		for (int r = 0; r < 4 && added < JOBS; r++) {
			if (taken[r])
				continue;
			uint32_t kind = random_below(&seed, 3);
			if (kind > BY_STORE) {
				load(ends[1], (uint64_t)3 << 32 | added, (uint8_t)(8 * r), 0);
				frames++;
			} else {
				CHECK(!add(&w, added, kind, kind, 8 * (uint32_t)r, 7));
			}
			taken[r] = 1;
			place[added++] = r;
		}
		uint32_t n = by_copier_take(w.copier, got, 16);
		for (uint32_t at = 0; at < n; at++) {
			uint32_t number = (uint32_t)got[at].number; /* without the session */
			CHECK(!ended[number]++);
			taken[place[number]] = 0;
		}
		count += n;
		if (!n)
			nap(20000);
	}
	atomic_store(&w.stop, 1);
	CHECK(write(pumped.wake, &one, sizeof one) == sizeof one);
	pthread_join(others[0], NULL);
	pthread_join(others[1], NULL);
	CHECK(pumped.begun == frames);
	end(&w);
	close(ends[0]);
	close(ends[1]);
	close(pumped.wake);
}


static void adjacent_runs_are_merged(void)
{
	/* One page a block, slots without gaps: a block-first layout. */
	struct by_page page = {4096, 100, 100, 0, 0, 0};
	struct by_plan *plan = by_plan_new(&page, 1, 1, 50);
	uint64_t slots[] = {1000, 1100, 1200, 2000, 2100};
	uint32_t blocks[] = {3, 4, 5, 6, 8};
	struct by_piece piece = {BY_LOAD, 0, 5, 5, slots, blocks, 0};
	struct by_run runs[8];
	CHECK(by_plan_runs(plan, &piece, 1 << 20, runs, 8) == 3);
	CHECK(runs[0].device == 4096 + 300 && runs[0].host == 1000 && runs[0].bytes == 300);
	CHECK(runs[1].device == 4096 + 600 && runs[1].host == 2000 && runs[1].bytes == 100);
	CHECK(runs[2].host == 2100);
	CHECK(by_plan_runs(plan, &piece, 250, runs, 8) == 4);
	CHECK(runs[1].device == 4096 + 550 && runs[1].host == 1250 && runs[1].bytes == 50);
	CHECK(by_plan_runs(plan, &piece, 250, runs, 3) == -28);
	by_plan_free(plan);
}

static void copies_of_any_length_and_alignment(void)
{
	static uint8_t from[9000], to[9000], want[9000];
	uint64_t seed = 9;
	fill(&seed, from, sizeof from);
	for (int n = 0; n < 3000; n++) {
		uint32_t a = random_below(&seed, 200), b = random_below(&seed, 200);
		uint32_t bytes = random_below(&seed, n % 2 ? 8700 : 300);
		fill(&seed, to, 64);
		memcpy(want, to, sizeof to);
		memcpy(want + a, from + b, bytes);
		by_copy(to + a, from + b, bytes);
		CHECK(!memcmp(to, want, sizeof to));
	}
}


int main(void)
{
	adjacent_runs_are_merged();
	copies_of_any_length_and_alignment();
	bytes_come_to_their_places();
	a_group_copies_its_own_pages();
	an_end_says_when_the_copy_began();
	a_job_is_added_once();
	the_ring_has_room_for_every_job();
	every_job_ends_once();
	puts("test_copier: ok");
	return 0;
}
