/*
 * Mutates LOAD frames for some seconds. The sanitizers find reads outside a frame; the checks find
 * a result that points outside.
 *
 *     fuzz_frames SECONDS [SEED]
 */
#include "check.h"

#define MAX (32 * 1024)

static const uint8_t good[] = {
	'B', 'Y', 'D', '1', 27, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* the length comes later */
	0x85, 0xa3, 'j', 'o', 'b', 0xcf, 1, 2, 3, 4, 5, 6, 7, 8,
	0xa5, 's', 'l', 'o', 't', 's', 0xc4, 32, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
	0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
	0xa6, 'b', 'l', 'o', 'c', 'k', 's', 0xc4, 8, 0, 2, 0, 0, 37, 0, 0, 0,
	0xa5, 'g', 'r', 'o', 'u', 'p', 1,
	0xa1, 'x', 0x92, 0xc0, 0x81, 0xd9, 1, 'y', 0xcb, 0, 0, 0, 0, 0, 0, 0, 0,
};

static void set_length(uint8_t *frame, size_t bytes)
{
	for (int n = 0; n < 4; n++)
		frame[12 + n] = (uint8_t)((bytes - 16) >> (8 * n));
}

/* Reads a frame in an allocation of its exact size. */
static int try_frame(const uint8_t *frame, size_t bytes)
{
	struct by_load load;
	uint8_t *exact = malloc(bytes ? bytes : 1);
	CHECK(exact);
	memcpy(exact, frame, bytes);
	int result = by_frame_load(exact, bytes, &load);
	if (!result) {
		const uint8_t *slots = load.slots, *blocks = load.blocks;
		CHECK(load.count && load.count <= 1024 && load.block_count == load.count);
		CHECK(slots >= exact && slots + 16 * load.count <= exact + bytes);
		CHECK(blocks >= exact && blocks + 4 * load.count <= exact + bytes);
	}
	free(exact);
	return result;
}

static size_t mutate(uint64_t *seed, uint8_t *frame, size_t bytes)
{
	static const uint8_t odd[] = {0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xc0, 0xc1, 0xc6, 0xc9, 0xcf,
				      0xd3, 0xd8, 0xdb, 0xdd, 0xdf, 0xe0, 0xff, 0x00, 0x1b, 0x20};
	for (uint32_t n = 1 + random_below(seed, 6); n; n--) {
		uint32_t at = random_below(seed, (uint32_t)bytes);
		uint32_t size = 1 + random_below(seed, 24);
		switch (random_below(seed, 5)) {
		case 0:
			frame[at] ^= (uint8_t)(1u << random_below(seed, 8));
			break;
		case 1:
			frame[at] = odd[random_below(seed, sizeof odd)];
			break;
		case 2: /* removes bytes */
			if (at + size < bytes && bytes - size >= 17) {
				memmove(frame + at, frame + at + size, bytes - at - size);
				bytes -= size;
			}
			break;
		case 3: /* repeats bytes */
			if (at + size <= bytes && bytes + size < MAX) {
				memmove(frame + at + size, frame + at, bytes - at);
				bytes += size;
			}
			break;
		default: /* nests */
			for (uint32_t k = 0; k < size && at + k < bytes; k++)
				frame[at + k] = 0x91;
		}
	}
	return bytes;
}

int main(int count, char **given)
{
	double until = seconds() + (count > 1 ? atof(given[1]) : 1);
	uint64_t seed = count > 2 ? strtoull(given[2], NULL, 10) : (uint64_t)time(NULL);
	uint64_t first = seed, tries = 0, taken = 0;
	static uint8_t frame[MAX];
	memcpy(frame, good, sizeof good);
	set_length(frame, sizeof good);
	CHECK(!try_frame(frame, sizeof good));
	for (size_t bytes = 0; bytes < sizeof good; bytes++) {
		set_length(frame, bytes < 16 ? 16 : bytes);
		CHECK(try_frame(frame, bytes)); /* cut off */
	}
	while (seconds() < until) {
		memcpy(frame, good, sizeof good);
		size_t bytes = mutate(&seed, frame, sizeof good);
		if (random_below(&seed, 8)) {
			memcpy(frame, good, 12);
			set_length(frame, bytes);
		}
		taken += !try_frame(frame, bytes);
		tries++;
	}
	printf("fuzz_frames: ok, %llu frames, %llu accepted, seed %llu\n",
	       (unsigned long long)tries, (unsigned long long)taken, (unsigned long long)first);
	CHECK(taken > 0 && taken < tries);
	return 0;
}
