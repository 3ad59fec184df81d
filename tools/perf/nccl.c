/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL beside us: the same operation of the same group by the library of this machine, if there is one (libnccl.so.2,
 * opened at run time). Types and reductions have its numbers. Its results are not checked. -R 0: it works on our
 * buffers. 1, 2: on its own memory, registered, or as windows that all ranks registered (the symmetric kernels of 2.27
 * and later).
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

#define LIBRARY "libnccl.so.2"
#define WINDOW_SYMMETRIC 1
#define TYPES 10 /* of NCCL: types from here on are ours alone */

struct id {
	char bytes[128];
};

typedef struct CUstream_st *stream_t;

struct perf_nccl {
	void *library, *comm;
	int (*get_id)(struct id *);
	int (*init)(void **comm, int n, struct id id, int rank);
	int (*destroy)(void *comm);
	int (*version)(int *);
	int (*alloc)(void **, size_t);
	int (*registered)(void *comm, void *, size_t, void **handle);
	int (*window)(void *comm, void *, size_t, void **window, int flags);
	int (*allreduce)(const void *, void *, size_t, int, int, void *comm, stream_t);
	int (*reduce)(const void *, void *, size_t, int, int, int, void *comm, stream_t);
	int (*broadcast)(const void *, void *, size_t, int, int, void *comm, stream_t);
	int (*allgather)(const void *, void *, size_t, int, void *comm, stream_t);
	int (*reduce_scatter)(const void *, void *, size_t, int, int, void *comm, stream_t);
	int (*send)(const void *, size_t, int, int, void *comm, stream_t);
	int (*recv)(void *, size_t, int, int, void *comm, stream_t);
	int (*begin)(void);
	int (*end)(void);
	char *own[2]; /* -R: memory of its own, for sent and received data */
	size_t bytes;
	char text[64];
};

static int find(struct perf_nccl *n)
{
	const struct {
		const char *name;
		void *at;
	} all[] = {
		{ "ncclGetUniqueId", &n->get_id },
		{ "ncclCommInitRank", &n->init },
		{ "ncclCommDestroy", &n->destroy },
		{ "ncclGetVersion", &n->version },
		{ "ncclAllReduce", &n->allreduce },
		{ "ncclReduce", &n->reduce },
		{ "ncclBroadcast", &n->broadcast },
		{ "ncclAllGather", &n->allgather },
		{ "ncclSend", &n->send },
		{ "ncclReduceScatter", &n->reduce_scatter },
		{ "ncclRecv", &n->recv },
		{ "ncclGroupStart", &n->begin },
		{ "ncclGroupEnd", &n->end },
		{ "ncclMemAlloc", &n->alloc },
		{ "ncclCommRegister", &n->registered },
		{ "ncclCommWindowRegister", &n->window },
	};

	n->library = dlopen(LIBRARY, RTLD_NOW);
	for (size_t i = 0; n->library && i < sizeof(all) / sizeof(all[0]); i++) {
		void *symbol = dlsym(n->library, all[i].name);

		memcpy(all[i].at, &symbol, sizeof(symbol));
		if (!symbol && all[i].at != (void *)&n->window && all[i].at != (void *)&n->registered)
			return 0;
	}
	return n->library != NULL;
}

/* The least of all ranks' answers, so that all branch the same way. */
static int all_say(struct perf_job *job, int yes)
{
	double value = yes;

	return !perf_agree(job, &value, COVEY_MIN) && value > 0;
}

static int say(struct perf_job *job, const char *what)
{
	if (perf_speaks(job))
		printf("# NCCL: %s\n", what);
	return 0;
}

/* Room of its own, on all ranks at the same time: registering windows is collective. */
static int own_room(struct perf_job *job, struct perf_nccl *n, size_t bytes)
{
	void *handle;
	int err = 0;

	n->bytes = bytes;
	for (int i = 0; i < 2 && !err; i++) {
		void *at = NULL;

		err = n->alloc(&at, bytes);
		n->own[i] = at;
		if (!err)
			err = job->opt.registered > 1 ? n->window(n->comm, at, bytes, &handle, WINDOW_SYMMETRIC)
						      : n->registered(n->comm, at, bytes, &handle);
	}
	return err;
}

static int connect(struct perf_job *job, struct perf_nccl *n, size_t bytes)
{
	struct id id = { { 0 } };
	int version = 0, err = job->rank == 0 ? n->get_id(&id) : 0;

	if (covey_broadcast(&id, &id, sizeof(id), COVEY_UINT8, 0, job->group, NULL, NULL))
		return COVEY_ERR_IO;
	if (!err)
		err = n->init(&n->comm, job->size, id, job->rank);
	if (!err && job->opt.registered)
		err = own_room(job, n, bytes);
	n->version(&version);
	snprintf(n->text, sizeof(n->text), "%d.%d.%d%s", version / 10000, version / 100 % 100, version % 100,
		 job->opt.registered > 1 ? ", symmetric windows"
		 : job->opt.registered	 ? ", registered"
					 : "");
	return err;
}

int perf_nccl_open(struct perf_job *job, size_t bytes, struct perf_nccl **out)
{
	struct perf_nccl *n = calloc(1, sizeof(*n));
	int found = n && find(n);

	*out = NULL;
	if (found && ((job->opt.registered == 1 && !n->registered) || (job->opt.registered == 2 && !n->window)))
		found = 0;
	if (!all_say(job, found) || !found) {
		free(n);
		return say(job, "not found, or too old for -R");
	}
	if (!all_say(job, !connect(job, n, bytes))) {
		perf_nccl_close(n);
		return say(job, "found, but it does not start");
	}
	*out = n;
	return say(job, n->text);
}

void perf_nccl_close(struct perf_nccl *n)
{
	if (n && n->comm)
		n->destroy(n->comm);
	free(n);
}

static int is(const struct operation *op, const char *name)
{
	return !strcmp(op->name, name);
}

bool perf_nccl_has(const struct perf_nccl *n, const struct operation *op, const struct operation_call *call)
{
	bool same_buffer = call->send == call->recv;

	(void)n;
	if (call->dtype >= TYPES || op->no_data || is(op, "gather") || is(op, "scatter") || is(op, "allgatherv"))
		return false;
	return !((is(op, "alltoall") || is(op, "alltoallv")) && same_buffer);
}

static size_t bytes_of(int dtype)
{
	int i = 0;

	while (perf_types[i].dtype != dtype)
		i++;
	return perf_types[i].bytes;
}

static int alltoall(const struct perf_nccl *n, const struct operation_call *c, const char *send, char *recv,
		    size_t bytes)
{
	int err = n->begin(), ended;

	for (int r = 0; r < c->size && !err; r++) {
		err = n->send(send + (size_t)r * bytes, c->count, c->dtype, r, n->comm, c->stream);
		if (!err)
			err = n->recv(recv + (size_t)r * bytes, c->count, c->dtype, r, n->comm, c->stream);
	}
	ended = n->end();
	return err ? err : ended;
}

static int sendrecv(const struct perf_nccl *n, const struct operation_call *c)
{
	int err = n->begin(), ended;

	if (!err)
		err = n->send(c->send, c->count, c->dtype, (c->rank + 1) % c->size, n->comm, c->stream);
	if (!err)
		err = n->recv(c->recv, c->count, c->dtype, (c->rank + c->size - 1) % c->size, n->comm, c->stream);
	ended = n->end();
	return err ? err : ended;
}

/* @c: as for ours, with the places of its buffers. */
static int run(const struct perf_nccl *n, const struct operation *op, const struct operation_call *c)
{
	if (is(op, "allreduce"))
		return n->allreduce(c->send, c->recv, c->count, c->dtype, c->redop, n->comm, c->stream);
	if (is(op, "reduce"))
		return n->reduce(c->send, c->recv, c->count, c->dtype, c->redop, c->root, n->comm, c->stream);
	if (is(op, "broadcast"))
		return n->broadcast(c->send, c->recv, c->count, c->dtype, c->root, n->comm, c->stream);
	if (is(op, "allgather"))
		return n->allgather(c->send, c->recv, c->count, c->dtype, n->comm, c->stream);
	if (is(op, "reduce_scatter"))
		return n->reduce_scatter(c->send, c->recv, c->count, c->dtype, c->redop, n->comm, c->stream);
	if (is(op, "sendrecv"))
		return sendrecv(n, c);
	return alltoall(n, c, c->send, c->recv, c->count * bytes_of(c->dtype));
}

int perf_nccl_run(const struct perf_nccl *n, const struct operation *op, const struct operation_call *call,
		  const char *const ours[2], size_t bytes)
{
	struct operation_call c = *call;

	for (int i = 0; i < 2 && n->own[0]; i++) {
		if ((uintptr_t)call->send - (uintptr_t)ours[i] < bytes)
			c.send = n->own[i] + ((const char *)call->send - ours[i]);
		if ((uintptr_t)call->recv - (uintptr_t)ours[i] < bytes)
			c.recv = n->own[i] + ((const char *)call->recv - ours[i]);
	}
	return run(n, op, &c) ? COVEY_ERR_IO : 0;
}
