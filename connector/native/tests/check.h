/* The library's own tests: a check that fails ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include "../blockyard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, \
				__func__, #condition);                                    \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

static inline uint32_t random_below(uint64_t *state, uint32_t limit)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33) % limit;
}

static inline void fill(uint64_t *state, void *at, size_t bytes)
{
	for (size_t n = 0; n < bytes; n += sizeof *state) {
		random_below(state, 1);
		uint64_t word = *state ^ *state >> 32;
		memcpy((uint8_t *)at + n, &word, bytes - n < sizeof word ? bytes - n : sizeof word);
	}
}

static inline double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline void nap(long ns)
{
	nanosleep(&(struct timespec){0, ns}, NULL);
}

#endif
