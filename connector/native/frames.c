/*
 * LOAD frames of docs/protocol.md. Python's replies.py is the reference: whatever this file
 * accepts, replies.py accepts with the same values. This file may refuse more, and Python then
 * reads the frame.
 */
#include "internal.h"

#include <errno.h>
#include <string.h>

#define HEADER_BYTES 16
#define MAX_FRAME (32 * 1024)
#define MAX_DEPTH 8
#define MAX_BLOCKS 1024
#define MAGIC 0x31445942u /* "BYD1" */

struct reader {
	const uint8_t *at, *end;
};

struct value {
	enum { UINT, BIN, OTHER } kind;
	uint64_t number; /* of UINT, or bytes of BIN */
	const uint8_t *bytes;
};

static uint32_t little(const uint8_t *at, int bytes)
{
	uint32_t value = 0;
	for (int n = bytes - 1; n >= 0; n--)
		value = value << 8 | at[n];
	return value;
}

/* Reads a big-endian number. Returns whether the bytes are there. */
static int number(struct reader *in, int bytes, uint64_t *value)
{
	if (in->end - in->at < bytes)
		return 0;
	*value = 0;
	while (bytes--)
		*value = *value << 8 | *in->at++;
	return 1;
}

static int skip(struct reader *in, uint64_t bytes)
{
	if ((uint64_t)(in->end - in->at) < bytes)
		return 0;
	in->at += bytes;
	return 1;
}

/* Skips a string. Only ASCII, so that UTF-8 need not be checked. */
static int string(struct reader *in, uint64_t bytes, const uint8_t **text)
{
	*text = in->at;
	if (!skip(in, bytes))
		return 0;
	for (uint64_t n = 0; n < bytes; n++)
		if ((*text)[n] >= 0x80)
			return 0;
	return 1;
}

static int value(struct reader *in, int depth, struct value *out);

static int items(struct reader *in, uint64_t count, int depth)
{
	struct value item;
	if (depth <= 0 || count > (uint64_t)(in->end - in->at))
		return 0;
	while (count--)
		if (!value(in, depth - 1, &item))
			return 0;
	return 1;
}

/* Reads a map key, which is a string. */
static int key(struct reader *in, const uint8_t **text, uint64_t *bytes)
{
	uint8_t first;
	if (in->at == in->end)
		return 0;
	first = *in->at++;
	if (first >= 0xa0 && first < 0xc0)
		*bytes = first & 31;
	else if (first < 0xd9 || first > 0xdb || !number(in, 1 << (first - 0xd9), bytes))
		return 0;
	return string(in, *bytes, text);
}

static int map(struct reader *in, uint64_t count, int depth)
{
	const uint8_t *text;
	uint64_t bytes;
	struct value item;
	if (depth <= 0 || 2 * count > (uint64_t)(in->end - in->at))
		return 0;
	while (count--)
		if (!key(in, &text, &bytes) || !value(in, depth - 1, &item))
			return 0;
	return 1;
}

/* Types from 0xc0 to 0xdf. */
static int sized(struct reader *in, uint8_t first, int depth, struct value *out)
{
	uint64_t bytes;
	const uint8_t *text;
	if (first == 0xc0 || first == 0xc2 || first == 0xc3)
		return 1;
	if (first >= 0xc4 && first <= 0xc6) {
		if (!number(in, 1 << (first - 0xc4), &bytes))
			return 0;
		*out = (struct value){BIN, bytes, in->at};
		return skip(in, bytes);
	}
	if (first >= 0xc7 && first <= 0xc9)
		return number(in, 1 << (first - 0xc7), &bytes) && skip(in, bytes + 1);
	if (first == 0xca || first == 0xcb)
		return skip(in, first == 0xca ? 4 : 8);
	if (first >= 0xcc && first <= 0xcf) {
		out->kind = UINT;
		return number(in, 1 << (first - 0xcc), &out->number);
	}
	if (first >= 0xd0 && first <= 0xd3) {
		int size = 1 << (first - 0xd0);
		if (!number(in, size, &out->number))
			return 0;
		out->kind = out->number >> (8 * size - 1) ? OTHER : UINT;
		return 1;
	}
	if (first >= 0xd4 && first <= 0xd8)
		return skip(in, 1u + (1u << (first - 0xd4)));
	if (first >= 0xd9 && first <= 0xdb)
		return number(in, 1 << (first - 0xd9), &bytes) && string(in, bytes, &text);
	if (first == 0xdc || first == 0xdd)
		return number(in, first == 0xdc ? 2 : 4, &bytes) && items(in, bytes, depth);
	if (first == 0xde || first == 0xdf)
		return number(in, first == 0xde ? 2 : 4, &bytes) && map(in, bytes, depth);
	return 0;
}

/* Reads one value. Returns whether the value is well-formed. */
static int value(struct reader *in, int depth, struct value *out)
{
	const uint8_t *text;
	uint8_t first;
	*out = (struct value){OTHER, 0, NULL};
	if (in->at == in->end)
		return 0;
	first = *in->at++;
	if (first < 0x80) {
		*out = (struct value){UINT, first, NULL};
		return 1;
	}
	if (first < 0x90)
		return map(in, first & 15, depth);
	if (first < 0xa0)
		return items(in, first & 15, depth);
	if (first < 0xc0)
		return string(in, first & 31, &text);
	return first >= 0xe0 || sized(in, first, depth, out);
}

int by_frame_type(const void *frame, size_t bytes)
{
	const uint8_t *at = frame;
	if (bytes < HEADER_BYTES || bytes > MAX_FRAME || little(at, 4) != MAGIC ||
	    little(at + 6, 2) || little(at + 12, 4) != bytes - HEADER_BYTES)
		return -EBADMSG;
	return (int)little(at + 4, 2);
}

static int named(const uint8_t *text, uint64_t bytes, const char *name)
{
	return bytes == strlen(name) && !memcmp(text, name, bytes);
}

/* Puts a field of LOAD in its place. Returns whether the type is right. */
static int field(struct by_load *load, const uint8_t *text, uint64_t bytes,
		 const struct value *value, uint64_t *group)
{
	if (named(text, bytes, "job")) {
		load->job = value->number;
		return value->kind == UINT;
	}
	if (named(text, bytes, "group")) {
		*group = value->number;
		return value->kind == UINT;
	}
	if (named(text, bytes, "slots")) {
		load->slots = value->bytes;
		load->count = (uint32_t)(value->number / sizeof(struct by_slot));
		return value->kind == BIN && value->number % sizeof(struct by_slot) == 0;
	}
	if (named(text, bytes, "blocks")) {
		load->blocks = value->bytes;
		load->block_count = (uint32_t)(value->number / 4);
		return value->kind == BIN && value->number % 4 == 0;
	}
	return 1;
}

int by_frame_load(const void *frame, size_t bytes, struct by_load *load)
{
	struct reader in = {(const uint8_t *)frame + HEADER_BYTES, (const uint8_t *)frame + bytes};
	uint64_t count, length, group = 0;
	const uint8_t *text;
	struct value item;
	memset(load, 0, sizeof *load);
	if (by_frame_type(frame, bytes) != BY_FRAME_LOAD || in.at == in.end)
		return -EBADMSG;
	uint8_t first = *in.at++;
	if (first >= 0x80 && first < 0x90)
		count = first & 15;
	else if ((first != 0xde && first != 0xdf) || !number(&in, first == 0xde ? 2 : 4, &count))
		return -EBADMSG;
	if (2 * count > (uint64_t)(in.end - in.at))
		return -EBADMSG;
	while (count--)
		if (!key(&in, &text, &length) || !value(&in, MAX_DEPTH - 1, &item) ||
		    !field(load, text, length, &item, &group))
			return -EBADMSG;
	load->group = (uint32_t)group;
	if (in.at != in.end || group > UINT32_MAX - 1 || !load->count ||
	    load->count > MAX_BLOCKS || load->block_count != load->count)
		return -EBADMSG;
	return 0;
}
