/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The adapter's checks, each with a fault planted for it: with the check on it is found, under its name and no other;
 * with the check out it is not, so it is this check that finds it. Entries are written word by word here, as by
 * somebody who never saw the library's builders.
 */
#include "../suite.h"
#include "rig.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define DEPTH 16 /* entries of the ring */

static struct rig rig;
static uint16_t next;

static void word(uint8_t *entry, unsigned at, uint32_t v)
{
	v = htobe32(v);
	memcpy(entry + at, &v, 4);
}

static void address(uint8_t *entry, unsigned at, const void *p)
{
	word(entry, at, (uint32_t)((uint64_t)(uintptr_t)p >> 32));
	word(entry, at + 4, (uint32_t)(uintptr_t)p);
}

/* A write of 8 bytes at the next index, well-formed. */
static uint8_t *write_entry(int signalled)
{
	uint8_t *e = rig_slot(&rig, next);

	memset(e, 0, 64);
	word(e, 0, (uint32_t)next << 8 | 0x08);
	word(e, 4, rig.near_qp->qp_num << 8 | 3);
	word(e, 8, signalled ? 8 : 0);
	address(e, 16, rig.far + 64);
	word(e, 24, rig.far_mr->rkey);
	word(e, 32, 8);
	word(e, 36, rig.near_mr->lkey);
	address(e, 40, rig.near);
	next++;
	return e;
}

static uint8_t *add_entry(void)
{
	uint8_t *e = write_entry(1);

	word(e, 0, be32toh(*(uint32_t *)e) + 0x12 - 0x08);
	word(e, 4, rig.near_qp->qp_num << 8 | 4);
	memset(e + 32, 0, 16);
	word(e, 48, 8);
	word(e, 52, rig.near_mr->lkey);
	address(e, 56, rig.near + 128);
	return e;
}

static void wait_entries(uint64_t n)
{
	uint64_t since = rig_now();
	struct softmlx5_stats s;

	do {
		softmlx5_stats(&s);
		usleep(100);
	} while (s.entries < n && rig_now() - since < RIG_BOUND_NS);
	ck_assert_uint_ge(s.entries, n);
}

/* What follows strikes at entries that were picked up. */
static void wait_doorbell(void)
{
	uint64_t since = rig_now();
	struct softmlx5_stats s;

	do {
		softmlx5_stats(&s);
	} while (!s.doorbells && rig_now() - since < RIG_BOUND_NS);
}

static void slow(uint32_t ns)
{
	struct softmlx5_plan plan = { .seed = 5, .delay_ns = ns };

	softmlx5_plan(&plan);
}

static void plant_index(void)
{
	uint8_t *e = write_entry(1);

	e[2] ^= 1;
}

static void plant_qpn(void)
{
	uint8_t *e = write_entry(1);

	e[6] ^= 1;
}

static void plant_size(void)
{
	uint8_t *e = add_entry();

	e[7] = 3;
}

static void plant_reserved(void)
{
	word(write_entry(1), 28, 1);
}

static void plant_opmod(void)
{
	write_entry(1)[0] = 1;
}

static void plant_zero(void)
{
	word(write_entry(1), 32, 0);
}

static void plant_inline(void)
{
	word(write_entry(1), 32, 0x80000000u | 64);
}

static void plant_ahead(void)
{
	uint32_t bell[2] = { htobe32((uint32_t)(next + 2) << 8), htobe32(rig.near_qp->qp_num << 8) };
	uint64_t value;

	write_entry(1);
	memcpy(&value, bell, 8);
	__atomic_store_n(&rig.ring.dbrec[1], htobe32(next), __ATOMIC_SEQ_CST);
	__atomic_store_n((uint64_t *)rig.ring.bf.reg, value, __ATOMIC_SEQ_CST);
}

static void plant_overrun(void)
{
	for (int i = 0; i < DEPTH; i++)
		write_entry(1);
	next++; /* one more than there are */
}

static void plant_unsignalled(void)
{
	for (int i = 0; i < 2; i++) {
		for (int k = 0; k < DEPTH; k++)
			write_entry(0);
		rig_ring(&rig, next);
		wait_entries((uint64_t)(i + 1) * DEPTH);
	}
}

/* Entries are done in order, so the last of many is still under way after a moment. */
static void plant_rewritten(void)
{
	slow(10000000);
	for (int i = 0; i < DEPTH; i++)
		write_entry(1);
	rig_ring(&rig, next);
	wait_doorbell();
	next += DEPTH - 1;
	write_entry(1); /* over the last */
	next -= DEPTH;
}

static void plant_changed(void)
{
	uint8_t *e = NULL;

	slow(10000000);
	for (int i = 0; i < DEPTH; i++)
		e = write_entry(1);
	rig_ring(&rig, next);
	wait_doorbell();
	address(e, 16, rig.far + 72);
}

static void plant_lost(void)
{
	struct softmlx5_plan plan = { .lost_ms = 20 };

	softmlx5_plan(&plan);
	write_entry(1);
	__atomic_store_n(&rig.ring.dbrec[1], htobe32(next), __ATOMIC_SEQ_CST);
}

static void plant_cq_overrun(void)
{
	for (int i = 0; i < 1024 / DEPTH + 1; i++) {
		for (int k = 0; k < DEPTH; k++)
			write_entry(1);
		rig_ring(&rig, next);
		wait_entries((uint64_t)(i + 1) * DEPTH);
	}
}

/* A collapsed queue of completions by a command, whose memory begins as zeros. */
static void plant_cq_init(void)
{
	uint8_t in[0x110] = { 0x04 }, out[16] = { 0 }, *memory = aligned_alloc(4096, 8192);
	struct mlx5dv_devx_umem *umem;
	struct mlx5dv_devx_uar *uar;
	struct mlx5dv_devx_obj *cq;
	uint32_t eqn;

	memset(memory, 0, 8192);
	umem = mlx5dv_devx_umem_reg(rig.context, memory, 8192, IBV_ACCESS_LOCAL_WRITE);
	uar = mlx5dv_devx_alloc_uar(rig.context, MLX5DV_UAR_ALLOC_TYPE_BF);
	ck_assert(umem && uar && !mlx5dv_devx_query_eqn(rig.context, 0, &eqn));
	word(in, 0x10, 1u << 25 | 1u << 20 | 1u << 17); /* record valid, collapsed, ignores overruns */
	word(in, 0x14, umem->umem_id);
	word(in, 0x1c, 4u << 24 | uar->page_id);
	word(in, 0x24, eqn);
	word(in, 0x4c, 4096);
	word(in, 0x58, umem->umem_id);
	word(in, 0x5c, 1u << 31);
	cq = mlx5dv_devx_obj_create(rig.context, in, sizeof(in), out, sizeof(out));
	if (cq)
		mlx5dv_devx_obj_destroy(cq);
	mlx5dv_devx_umem_dereg(umem);
	mlx5dv_devx_free_uar(uar);
	free(memory);
}

static void (*const plant[])(void) = {
	[SOFTMLX5_INDEX] = plant_index,		[SOFTMLX5_QPN] = plant_qpn,
	[SOFTMLX5_SIZE] = plant_size,		[SOFTMLX5_RESERVED] = plant_reserved,
	[SOFTMLX5_OPMOD] = plant_opmod,		[SOFTMLX5_ZERO] = plant_zero,
	[SOFTMLX5_INLINE] = plant_inline,	[SOFTMLX5_AHEAD] = plant_ahead,
	[SOFTMLX5_OVERRUN] = plant_overrun,	[SOFTMLX5_UNSIGNALLED] = plant_unsignalled,
	[SOFTMLX5_REWRITTEN] = plant_rewritten, [SOFTMLX5_CHANGED] = plant_changed,
	[SOFTMLX5_LOST] = plant_lost,		[SOFTMLX5_CQ_OVERRUN] = plant_cq_overrun,
	[SOFTMLX5_CQ_INIT] = plant_cq_init,
};

/* What the plan of this check posts, and its doorbell. */
static void strike(int check, int on)
{
	struct softmlx5_stats s;
	uint64_t since = rig_now();

	plant[check]();
	if (check != SOFTMLX5_LOST && check != SOFTMLX5_AHEAD && check != SOFTMLX5_CQ_INIT)
		rig_ring(&rig, next);
	/* Found, or where it will not be: long after it would have been. */
	do {
		softmlx5_stats(&s);
		usleep(1000);
	} while (!s.found[check] && rig_now() - since < (on ? RIG_BOUND_NS : 400000000ull));
}

TEST_LOOP(each_check_finds_its_fault, 0, 2 * SOFTMLX5_NCHECKS)
{
	int check = _i / 2, on = _i % 2;
	struct softmlx5_stats s;

	ck_assert(plant[check] != NULL);
	ck_assert_uint_eq(rig.ring.sq.wqe_cnt, DEPTH);
	softmlx5_strict(check, on);
	strike(check, on);
	softmlx5_stats(&s);
	for (int i = 0; i < SOFTMLX5_NCHECKS; i++) {
		if (i == check && on)
			ck_assert_msg(s.found[i] > 0, "%s is not found", softmlx5_check_name(i));
		else if (i == check || on)
			ck_assert_msg(s.found[i] == 0, "%s for %s: %s", softmlx5_check_name(i),
				      softmlx5_check_name(check), s.last);
	}
	if (on)
		ck_assert(s.last[0]);
}

/* The entries as they are, without a fault: none of the checks is a nuisance. */
TEST(nothing_is_found_without_a_fault)
{
	struct softmlx5_plan plan = { .seed = 3, .delay_ns = 20000 };
	uint64_t n = 0;

	softmlx5_plan(&plan);
	for (int i = 0; i < 5000; i++) {
		(void)(i % 3 ? write_entry(1) : add_entry());
		rig_ring(&rig, next);
		ck_assert_int_eq(rig_completion(&rig).status, IBV_WC_SUCCESS);
		n++;
	}
	wait_entries(n);
	usleep(100000);
	ck_assert_uint_eq(softmlx5_found(), 0);
}

static void open_rig(void)
{
	rig_open(&rig, DEPTH);
	next = 0;
}

SUITE_MAIN(.name = "softmlx5/strict", .setup = open_rig)
