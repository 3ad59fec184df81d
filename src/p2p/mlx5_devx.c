/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A send queue made by commands to the adapter (DEVX), for two things that verbs cannot give: completions *collapsed*
 * into one place that always holds the newest, and a queue in memory that we choose. One registered piece of memory
 * holds ring, completion and record. The fields of commands are numbered as in the adapter's manual: bits from the
 * start, most significant first. The software adapter has its own table, written independently.
 */
#include "queues.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "mlx5.h"

#define COMMAND_BYTES 0x110
#define ANSWER_BYTES 0x10
#define CAPS_BYTES (0x10 + 0x1000)
#define UDP_PORT 0xc000 /* of RoCE v2, the lowest that adapters take */

enum { QUERY_CAPS = 0x100, CREATE_CQ = 0x400, CREATE_QP = 0x500, TO_INIT = 0x502, TO_RTR, TO_RTS, TO_ERROR = 0x507 };

/* first bit, bits */
#define OPCODE 0x00, 16
#define MODIFIER 0x30, 16
#define NUMBER 0x48, 24
#define STATUS 0x00, 8
#define SYNDROME 0x20, 32
#define CQC 0x80 /* context of completions */
#define CQ_RECORD_VALID CQC + 0x06, 1
#define CQ_COLLAPSED CQC + 0x0b, 1
#define CQ_IGNORE_OVERRUN CQC + 0x0e, 1
#define CQ_RECORD_MEMORY CQC + 0x20, 32
#define CQ_LOG_SIZE CQC + 0x63, 5
#define CQ_PAGE CQC + 0x68, 24
#define CQ_EVENTS CQC + 0xb8, 8
#define CQ_RECORD_AT CQC + 0x1e0, 32
#define CQ_AT 0x2a0, 32
#define CQ_MEMORY 0x2c0, 32
#define CQ_MEMORY_VALID 0x2e0, 1
#define QPC 0xc0 /* context of a queue pair */
#define QP_PATH_MIGRATED QPC + 0x13, 2
#define QP_DOMAIN QPC + 0x28, 24
#define QP_MTU QPC + 0x40, 3
#define QP_LOG_MESSAGE QPC + 0x43, 5
#define QP_LOG_SIZE QPC + 0x51, 4
#define QP_PAGE QPC + 0x68, 24
#define QP_FAR QPC + 0xa8, 24
#define QP_LOG_READS_OUT QPC + 0x388, 3
#define QP_RETRIES QPC + 0x38d, 3
#define QP_NOT_READY_RETRIES QPC + 0x390, 3
#define QP_SEND_PSN QPC + 0x3c8, 24
#define QP_CQ_SEND QPC + 0x3e8, 24
#define QP_LOG_READS_IN QPC + 0x488, 3
#define QP_ATOMIC_MODE QPC + 0x48c, 4
#define QP_MAY_READ QPC + 0x490, 1
#define QP_MAY_WRITE QPC + 0x491, 1
#define QP_MAY_ADD QPC + 0x492, 1
#define QP_NOT_READY_TIMER QPC + 0x4a3, 5
#define QP_RECV_PSN QPC + 0x4a8, 24
#define QP_CQ_RECV QPC + 0x4e8, 24
#define QP_RECORD_AT QPC + 0x520, 32
#define QP_RECEIVE_TYPE QPC + 0x565, 3
#define QP_RECORD_VALID QPC + 0x683, 1
#define QP_RECORD_MEMORY QPC + 0x720, 32
#define QP_AT 0x820, 32
#define QP_MEMORY 0x840, 32
#define QP_MEMORY_VALID 0x860, 1
#define PATH (QPC + 0xc0)
#define PATH_GLOBAL PATH + 0x28, 1
#define PATH_LID PATH + 0x30, 16
#define PATH_TIMEOUT PATH + 0x40, 5
#define PATH_GID_INDEX PATH + 0x48, 8
#define PATH_HOPS PATH + 0x58, 8
#define PATH_GID (PATH + 0x80)
#define PATH_UDP_PORT PATH + 0x110, 16
#define PATH_PORT PATH + 0x128, 8
#define PATH_MAC_HIGH PATH + 0x130, 16
#define PATH_MAC_LOW PATH + 0x140, 32
#define CAP_CQE_VERSION 0x1fc, 4
#define CAP_ATOMICS 0x21e, 1
#define CAP_OPERATIONS 0x90, 16
#define CAP_SIZES 0xb0, 16

static void set(void *command, unsigned at, unsigned bits, uint32_t v)
{
	uint8_t *word = (uint8_t *)command + at / 32 * 4;
	unsigned shift = 32 - at % 32 - bits;
	uint32_t mask = (bits == 32 ? UINT32_MAX : (1u << bits) - 1) << shift, w;

	memcpy(&w, word, 4);
	w = htobe32((be32toh(w) & ~mask) | (v << shift & mask));
	memcpy(word, &w, 4);
}

static uint32_t get(const void *answer, unsigned at, unsigned bits)
{
	uint32_t w;

	memcpy(&w, (const uint8_t *)answer + at / 32 * 4, 4);
	return be32toh(w) >> (32 - at % 32 - bits) & (bits == 32 ? UINT32_MAX : (1u << bits) - 1);
}

static int refused(struct cvy_nic *nic, const char *what, const void *answer)
{
	return cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s refused to %s: %s, status %#x, syndrome %#x",
			nic->name, what, strerror(errno), get(answer, STATUS), get(answer, SYNDROME));
}

static int query(struct cvy_nic *nic, unsigned group, uint8_t *caps)
{
	uint8_t command[ANSWER_BYTES] = { 0 };

	memset(caps, 0, CAPS_BYTES);
	set(command, OPCODE, QUERY_CAPS);
	set(command, MODIFIER, group << 1 | 1); /* the current values, not the possible ones */
	if (nic->api->mlx5dv_devx_general_cmd_(nic->context, command, sizeof(command), caps, CAPS_BYTES))
		return refused(nic, "tell what it can do", caps);
	return 0;
}

/* May this process send commands, and do completions and adds behave as expected? Tried once. */
int cvy_devx_probe(struct cvy_nic *nic)
{
	uint8_t caps[CAPS_BYTES];
	int err;

	if (nic->devx == 1)
		return 0;
	if (nic->devx < 0)
		return cvy_fail(nic->box, nic->devx, -1, 0,
				"%s takes no commands from here: DEVX is off or not allowed", nic->name);
	err = query(nic, 0, caps);
	if (!err && (get(caps + 0x10, CAP_CQE_VERSION) != 1 || !get(caps + 0x10, CAP_ATOMICS)))
		err = cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s: completions of version %u, atomics %u",
			       nic->name, get(caps + 0x10, CAP_CQE_VERSION), get(caps + 0x10, CAP_ATOMICS));
	if (!err)
		err = query(nic, 3, caps);
	if (!err && (!(get(caps + 0x10, CAP_OPERATIONS) & 2) || !(get(caps + 0x10, CAP_SIZES) & 8)))
		err = cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s cannot add to 8 bytes", nic->name);
	nic->devx = err ? err : 1;
	return err;
}

static int new_register(struct cvy_nic *nic)
{
	struct cvy_uar *u = calloc(1, sizeof(*u));

	if (!u)
		return COVEY_ERR_NOMEM;
	u->uar = nic->api->mlx5dv_devx_alloc_uar_(nic->context, MLX5DV_UAR_ALLOC_TYPE_BF);
	if (!u->uar) {
		free(u);
		return cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s gives no register for doorbells: %s",
				nic->name, strerror(errno));
	}
	u->next = nic->uars;
	nic->uars = u;
	return 0;
}

static int take_register(struct cvy_queue_pair *p)
{
	struct cvy_nic *nic = p->nic;
	struct cvy_uar *u = nic->uars;
	int err;

	while (u && u->used)
		u = u->next;
	if (!u) {
		err = new_register(nic);
		if (err)
			return err;
		u = nic->uars;
	}
	p->uar = u;
	u->used = 1;
	p->reg = u->uar->reg_addr;
	return 0;
}

static size_t memory_bytes(uint32_t depth)
{
	return ((size_t)depth * 2 * CVY_MLX5_BLOCK + CVY_MLX5_BLOCK + CVY_PAGE - 1) & ~(size_t)(CVY_PAGE - 1);
}

/* The slot of the reserved memory that has been free longest; else new memory. */
static uint8_t *find_memory(struct cvy_queue_pair *p)
{
	struct cvy_nic *nic = p->nic;

	for (unsigned i = 0; nic->reserve.depth == p->args.depth && !p->args.hosted && i < nic->reserve.slots; i++) {
		unsigned slot = (nic->reserve.next + i) % nic->reserve.slots;

		if (nic->reserve.taken[slot])
			continue;
		nic->reserve.taken[slot] = 1;
		nic->reserve.next = slot + 1;
		p->reserved = 1;
		return nic->reserve.memory + slot * nic->reserve.slot_bytes;
	}
	return aligned_alloc(CVY_PAGE, p->memory_bytes);
}

/* Ring, completion, record; completions begin as ff before the adapter knows of them. */
static int take_memory(struct cvy_queue_pair *p)
{
	struct cvy_nic *nic = p->nic;

	p->ring_bytes = (size_t)p->args.depth * CVY_MLX5_BLOCK;
	p->cqes_bytes = p->ring_bytes;
	p->memory_bytes = memory_bytes(p->args.depth);
	p->memory = find_memory(p);
	if (!p->memory)
		return COVEY_ERR_NOMEM;
	memset(p->memory, 0, p->memory_bytes);
	p->ring = p->memory;
	p->cqes = p->ring + p->ring_bytes;
	p->record = (uint32_t *)(p->cqes + p->cqes_bytes);
	memset(p->cqes, 0xff, p->cqes_bytes);
	p->umem = nic->api->mlx5dv_devx_umem_reg_(nic->context, p->memory, p->memory_bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!p->umem)
		return cvy_fail(nic->box, COVEY_ERR_UNSUPPORTED, -1, 0,
				"%s: memory of a queue cannot be registered: %s", nic->name, strerror(errno));
	return 0;
}

/* As many places as entries, though each completion overwrites the last in the first: adapters may use the rest. */
static int create_completions(struct cvy_queue_pair *p, uint32_t *number)
{
	uint8_t in[COMMAND_BYTES] = { 0 }, out[ANSWER_BYTES] = { 0 };
	uint32_t events = 0;

	if (p->nic->api->mlx5dv_devx_query_eqn_(p->nic->context, 0, &events))
		return refused(p->nic, "name its event queue", out);
	set(in, OPCODE, CREATE_CQ);
	set(in, CQ_RECORD_VALID, 1);
	set(in, CQ_COLLAPSED, 1);
	set(in, CQ_IGNORE_OVERRUN, 1);
	set(in, CQ_RECORD_MEMORY, p->umem->umem_id);
	set(in, CQ_RECORD_AT, (uint32_t)(p->ring_bytes + p->cqes_bytes + 8));
	set(in, CQ_LOG_SIZE, (uint32_t)__builtin_ctz(p->args.depth));
	set(in, CQ_PAGE, p->uar->uar->page_id);
	set(in, CQ_EVENTS, events);
	set(in, CQ_AT, (uint32_t)p->ring_bytes);
	set(in, CQ_MEMORY, p->umem->umem_id);
	set(in, CQ_MEMORY_VALID, 1);
	p->devx_cq = p->nic->api->mlx5dv_devx_obj_create_(p->nic->context, in, sizeof(in), out, sizeof(out));
	if (!p->devx_cq)
		return refused(p->nic, "make a completion queue", out);
	*number = get(out, NUMBER);
	return 0;
}

static int create_queue(struct cvy_queue_pair *p, uint32_t cq)
{
	uint8_t in[COMMAND_BYTES] = { 0 }, out[ANSWER_BYTES] = { 0 };

	set(in, OPCODE, CREATE_QP);
	set(in, QP_PATH_MIGRATED, 3);
	set(in, QP_DOMAIN, p->nic->pdn);
	set(in, QP_LOG_SIZE, (uint32_t)__builtin_ctz(p->args.depth));
	set(in, QP_PAGE, p->uar->uar->page_id);
	set(in, QP_CQ_SEND, cq);
	set(in, QP_CQ_RECV, cq);
	set(in, QP_RECEIVE_TYPE, 3); /* receives nothing */
	set(in, QP_RECORD_VALID, 1);
	set(in, QP_RECORD_MEMORY, p->umem->umem_id);
	set(in, QP_RECORD_AT, (uint32_t)(p->ring_bytes + p->cqes_bytes));
	set(in, QP_AT, 0);
	set(in, QP_MEMORY, p->umem->umem_id);
	set(in, QP_MEMORY_VALID, 1);
	p->devx_qp = p->nic->api->mlx5dv_devx_obj_create_(p->nic->context, in, sizeof(in), out, sizeof(out));
	if (!p->devx_qp)
		return refused(p->nic, "make a queue", out);
	p->queue.mlx5.qpn = get(out, NUMBER);
	return 0;
}

int cvy_devx_open(struct cvy_queue_pair *p)
{
	uint32_t cq = 0;
	int err = cvy_devx_probe(p->nic);

	if (!err)
		err = take_register(p);
	if (!err)
		err = take_memory(p);
	if (!err)
		err = create_completions(p, &cq);
	if (!err)
		err = create_queue(p, cq);
	p->queue.mlx5.collapsed = 1;
	return err;
}

static int step(struct cvy_queue_pair *p, int op, uint8_t *in)
{
	uint8_t out[ANSWER_BYTES] = { 0 };

	set(in, OPCODE, (uint32_t)op);
	set(in, NUMBER, p->queue.mlx5.qpn);
	set(in, QP_PATH_MIGRATED, 3);
	if (p->nic->api->mlx5dv_devx_obj_modify_(p->devx_qp, in, COMMAND_BYTES, out, sizeof(out)))
		return refused(p->nic,
			       op == TO_INIT  ? "initialise a queue"
			       : op == TO_RTR ? "connect a queue"
			       : op == TO_RTS ? "let a queue send"
					      : "stop a queue",
			       out);
	return 0;
}

/* The kernel finds the far end's hardware address; an address handle is the way to ask it. */
static int find_mac(struct cvy_queue_pair *p, const struct cvy_pair_name *far, uint8_t mac[6])
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = (uint8_t)p->nic->port };
	struct mlx5dv_ah dv = { 0 };
	struct mlx5dv_obj obj = { 0 };
	struct ibv_ah *ah;
	int err = 0;

	attr.grh.sgid_index = (uint8_t)p->nic->gid_index;
	attr.grh.hop_limit = CVY_PAIR_HOPS;
	memcpy(attr.grh.dgid.raw, far->gid, 16);
	ah = p->nic->api->ibv_create_ah_(p->nic->pd, &attr);
	if (!ah)
		return cvy_fail(p->nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s finds no way to the far end: %s",
				p->nic->name, strerror(errno));
	obj.ah.in = ah;
	obj.ah.out = &dv;
	if (p->nic->api->mlx5dv_init_obj_(&obj, MLX5DV_OBJ_AH))
		err = cvy_fail(p->nic->box, COVEY_ERR_UNSUPPORTED, -1, 0, "%s: the far end has no hardware address",
			       p->nic->name);
	else
		memcpy(mac, dv.av->rmac, 6);
	p->nic->api->ibv_destroy_ah_(ah);
	return err;
}

static int set_path(struct cvy_queue_pair *p, const struct cvy_pair_name *far, uint8_t *in)
{
	uint8_t mac[6] = { 0 };
	int err;

	if (!p->nic->ethernet) {
		set(in, PATH_LID, far->lid);
		return 0;
	}
	err = find_mac(p, far, mac);
	if (err)
		return err;
	set(in, PATH_GID_INDEX, (uint32_t)p->nic->gid_index);
	set(in, PATH_HOPS, CVY_PAIR_HOPS);
	memcpy(in + PATH_GID / 8, far->gid, 16);
	set(in, PATH_UDP_PORT, UDP_PORT | (p->queue.mlx5.qpn & 0x3fff));
	set(in, PATH_MAC_HIGH, (uint32_t)mac[0] << 8 | mac[1]);
	set(in, PATH_MAC_LOW, (uint32_t)mac[2] << 24 | (uint32_t)mac[3] << 16 | (uint32_t)mac[4] << 8 | mac[5]);
	return 0;
}

int cvy_devx_connect(struct cvy_queue_pair *p, const struct cvy_pair_name *far)
{
	uint8_t init[COMMAND_BYTES] = { 0 }, rtr[COMMAND_BYTES] = { 0 }, rts[COMMAND_BYTES] = { 0 };
	int err;

	set(init, QP_MAY_READ, 1);
	set(init, QP_MAY_WRITE, 1);
	set(init, QP_MAY_ADD, 1);
	set(init, QP_ATOMIC_MODE, 1);
	set(init, PATH_PORT, (uint32_t)p->nic->port);
	err = step(p, TO_INIT, init);
	if (err)
		return err;
	set(rtr, QP_MTU, (uint32_t)p->nic->mtu);
	set(rtr, QP_LOG_MESSAGE, 30);
	set(rtr, QP_FAR, far->qpn);
	set(rtr, QP_LOG_READS_IN, (uint32_t)__builtin_ctz(CVY_PAIR_READS));
	set(rtr, QP_ATOMIC_MODE, 1);
	set(rtr, QP_NOT_READY_TIMER, 12);
	set(rtr, QP_RECV_PSN, far->psn);
	set(rtr, PATH_PORT, (uint32_t)p->nic->port);
	err = set_path(p, far, rtr);
	if (!err)
		err = step(p, TO_RTR, rtr);
	if (err)
		return err;
	set(rts, QP_LOG_READS_OUT, (uint32_t)__builtin_ctz(CVY_PAIR_READS));
	set(rts, QP_RETRIES, p->args.retry);
	set(rts, QP_NOT_READY_RETRIES, 6);
	set(rts, QP_SEND_PSN, p->psn);
	set(rts, PATH_TIMEOUT, p->args.timeout);
	return step(p, TO_RTS, rts);
}

int cvy_devx_stop(struct cvy_queue_pair *p)
{
	uint8_t in[COMMAND_BYTES] = { 0 };

	return step(p, TO_ERROR, in);
}

void cvy_devx_close(struct cvy_queue_pair *p)
{
	const struct cvy_mlx5_api *api = p->nic->api;

	if (p->devx_qp && api->mlx5dv_devx_obj_destroy_(p->devx_qp))
		cvy_warn("p2p", "%s: queue %x does not end", p->nic->name, p->queue.mlx5.qpn);
	if (p->devx_cq)
		api->mlx5dv_devx_obj_destroy_(p->devx_cq);
	if (p->umem)
		api->mlx5dv_devx_umem_dereg_(p->umem);
	if (p->uar)
		p->uar->used = 0;
}

/* After cvy_devx_close(), and when no poster sees it. */
void cvy_devx_free(struct cvy_queue_pair *p)
{
	struct cvy_nic *nic = p->nic;

	if (p->reserved)
		nic->reserve.taken[(size_t)(p->memory - nic->reserve.memory) / nic->reserve.slot_bytes] = 0;
	else
		free(p->memory);
}

static void *page_of(const struct cvy_uar *u)
{
	return (void *)((uintptr_t)u->uar->reg_addr & ~(uintptr_t)(CVY_PAGE - 1));
}

static int reserve_memory(struct cvy_nic *nic, unsigned pairs, uint32_t depth)
{
	const struct cvy_queue_memory *m = nic->memory;
	char why[160] = "";
	void *at;
	int err;

	nic->reserve.slot_bytes = memory_bytes(depth);
	nic->reserve.bytes = nic->reserve.slot_bytes * pairs;
	nic->reserve.memory = aligned_alloc(CVY_PAGE, nic->reserve.bytes);
	nic->reserve.taken = calloc(pairs, 1);
	if (!nic->reserve.memory || !nic->reserve.taken)
		return COVEY_ERR_NOMEM;
	err = m ? m->map(m->ctx, nic->reserve.memory, nic->reserve.bytes, 0, &at, why, sizeof(why)) : 0;
	if (err)
		return cvy_fail(nic->box, err, -1, 0, "%s: memory of queues is out of the GPU's reach: %s", nic->name,
				why);
	nic->reserve.mapped = m != NULL;
	nic->reserve.depth = depth;
	nic->reserve.slots = pairs;
	return 0;
}

static int reserve_registers(struct cvy_nic *nic, unsigned pairs)
{
	const struct cvy_queue_memory *m = nic->memory;
	char why[160] = "";
	void *at;
	int err;

	for (unsigned i = 0; i < pairs; i++) {
		err = new_register(nic);
		if (err)
			return err;
		err = m ? m->map(m->ctx, page_of(nic->uars), CVY_PAGE, 1, &at, why, sizeof(why)) : 0;
		if (err)
			return cvy_fail(nic->box, err, -1, 0, "%s: its doorbells are out of the GPU's reach: %s",
					nic->name, why);
		nic->uars->mapped = m != NULL;
	}
	return 0;
}

int cvy_nic_reserve(struct cvy_nic *nic, unsigned pairs, uint32_t depth, int registers)
{
	int err = cvy_devx_probe(nic);

	if (!err && !nic->reserve.memory)
		err = reserve_memory(nic, pairs, depth);
	if (!err && registers)
		err = reserve_registers(nic, pairs);
	return err;
}

void cvy_devx_unreserve(struct cvy_nic *nic)
{
	const struct cvy_queue_memory *m = nic->memory;

	for (struct cvy_uar *u = nic->uars; u; u = u->next)
		if (u->mapped)
			m->unmap(m->ctx, page_of(u), CVY_PAGE);
	if (nic->reserve.mapped)
		m->unmap(m->ctx, nic->reserve.memory, nic->reserve.bytes);
	free(nic->reserve.memory);
	free(nic->reserve.taken);
}
