/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what dispatch and combine wrote on a device: every row, the data beside it, every element of a sum. */
#include <stdlib.h>
#include <string.h>

#include "ep_room.h"

static bool is_value(const struct perf_job *job, const struct perf_room *room, size_t row, int h, unsigned want)
{
	const int by_row = perf_room_once(job) || perf_close(job->opt.preset);

	return perf_ep_is(&job->opt, room->rows + row * room->row_bytes,
			  room->scales + row * (by_row ? room->groups : 1), by_row ? 1 : room->bin_rows, h, want);
}

/* The entry of its source: the place of the bin's expert among those of the token. */
static bool is_entry(const struct perf_job *job, const struct perf_room *room, int bin, size_t at, int source, int t)
{
	const int id = job->rank * ((job->opt.experts + job->size - 1) / job->size) + bin;
	int k = 0;

	while (perf_ep_expert(&job->opt, source, t, k) != id)
		k++;
	if (perf_close(job->opt.preset))
		return room->triplets[3 * at] == source && room->triplets[3 * at + 1] == t &&
		       room->triplets[3 * at + 2] == k;
	return room->flat[2 * at] == source && room->flat[2 * at + 1] == t * job->opt.topk + k;
}

/* Row @row of the bin, whose first is @from, is token @t of @source. Also makes the input of combine: the sum over the experts here. */
static int64_t wrong_row(const struct perf_job *job, struct perf_room *room, int bin, size_t from, size_t row,
			 int source, int t)
{
	size_t at = from + row;
	unsigned times = perf_room_once(job) ? (unsigned)perf_room_experts_at(job, source, t, job->rank) : 1;
	int first = job->rank * ((job->opt.experts + job->size - 1) / job->size);
	int64_t wrong = room->src_info[at] != t;

	if (perf_room_flat(job) || perf_close(job->opt.preset))
		wrong += !is_entry(job, room, bin, at, source, t);
	for (int k = 0; perf_room_once(job) && k < job->opt.topk; k++) {
		int id = perf_ep_expert(&job->opt, source, t, k);

		wrong += room->recv_experts[at * (size_t)job->opt.topk + (size_t)k] !=
			 (perf_room_owner(job, id) == job->rank ? id - first : -1);
	}
	for (int h = 0; h < job->opt.hidden; h++) {
		unsigned want = perf_ep_value(source, t, h);

		wrong += !is_value(job, room, row, h, want);
		room->y[row * (size_t)job->opt.hidden + (size_t)h] = tool_bf16(times * want);
	}
	return wrong;
}

/* Is the token in this bin? */
static bool comes(const struct perf_job *job, int bin, int source, int t)
{
	int id = job->rank * ((job->opt.experts + job->size - 1) / job->size) + bin;

	if (perf_room_once(job))
		return perf_room_experts_at(job, source, t, job->rank) > 0;
	for (int k = 0; k < job->opt.topk; k++)
		if (perf_ep_expert(&job->opt, source, t, k) == id)
			return true;
	return false;
}

/* Rows are those of source 0, 1, ... without gaps, tokens ascending. */
static int64_t wrong_bin(const struct perf_job *job, struct perf_room *room, int bin, size_t from, size_t rows)
{
	size_t row = 0;
	int64_t wrong = 0;

	for (int s = 0; s < job->size; s++)
		for (int t = 0; t < job->opt.tokens; t++) {
			if (!comes(job, bin, s, t))
				continue;
			if (row < rows)
				wrong += wrong_row(job, room, bin, from, row, s, t);
			row++;
		}
	return wrong + (row != rows);
}

/* Reads the rows bin by bin, and writes the input of combine for each. */
int perf_room_check_dispatch(struct perf_job *job, struct perf_room *room, int64_t *wrong)
{
	const struct covey_dispatch_args *to = &room->pair.to;
	int (*copy)(void *, const void *, size_t) = job->device->tool->copy;
	size_t all = room->all_rows, hidden = (size_t)job->opt.hidden;
	size_t names = perf_room_once(job) ? all * (size_t)job->opt.topk : 0;
	int err = copy(room->src_info, to->src_info, all * sizeof(*room->src_info));

	if (!err)
		err = copy(room->range, to->range, (size_t)(room->bins * job->size) * sizeof(*room->range));
	if (!err)
		err = copy(room->recv_experts, to->recv_experts, names * sizeof(*room->recv_experts));
	if (!err && perf_room_flat(job))
		err = copy(room->flat, to->flat, all * 2 * sizeof(*room->flat));
	if (!err && perf_close(job->opt.preset))
		err = copy(room->triplets, to->triplets, all * 3 * sizeof(*room->triplets));
	for (int bin = 0; bin < room->bins && !err; bin++) {
		const int close = perf_close(job->opt.preset);
		int64_t last = room->range[(bin + 1) * job->size - 1], first = room->range[bin * job->size];
		size_t from = close ? (size_t)(uint32_t)first : (size_t)bin * room->bin_rows;
		size_t rows = (size_t)(uint32_t)last + (size_t)(last >> 32) - (close ? from : 0);

		if (rows > room->bin_rows || from + rows > all) {
			(*wrong)++;
			continue;
		}
		err = copy(room->rows, (char *)to->packed_x + from * room->row_bytes, rows * room->row_bytes);
		if (!err && room->groups)
			err = copy(room->scales, to->packed_scales + from * room->groups,
				   (close ? rows : room->bin_rows) * room->groups * sizeof(*room->scales));
		if (err)
			break;
		*wrong += wrong_bin(job, room, bin, from, rows);
		err = copy((char *)(uintptr_t)room->pair.back.y + from * hidden * 2, room->y, rows * hidden * 2);
	}
	return err ? perf_device_failed(job, "what dispatch wrote", err) : 0;
}

/* Then the output is overwritten: the next combine must write all of it. */
int perf_room_check_combine(struct perf_job *job, struct perf_room *room, int64_t *wrong)
{
	size_t hidden = (size_t)job->opt.hidden, n = (size_t)job->opt.tokens * hidden;
	uint16_t *out = malloc(n * sizeof(*out));
	int err = out ? job->device->tool->copy(out, room->pair.back.out, n * sizeof(*out)) : COVEY_ERR_NOMEM;

	if (!err && job->opt.spoil)
		out[0] ^= 1;
	for (size_t i = 0; i < n && !err; i++)
		*wrong += !perf_ep_came(&job->opt, out[i],
					perf_ep_value(job->rank, (int)(i / hidden), (int)(i % hidden)));
	free(out);
	if (!err)
		err = job->device->tool->fill(room->pair.back.out, 0xc5, n * sizeof(*out));
	return err ? perf_device_failed(job, "what combine wrote", err) : 0;
}
