/* SPDX-License-Identifier: Apache-2.0 */
/* A member's device: opened with the group, and called (device.h). */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device_state.h"
#include "ep_call.h"
#include "ep_outputs.h"
#include "library.h"
#include "log.h"
#include "shape.h"

#define PEERS 7 /* chunks that are set aside (IPC), if the number of peers is not given */

/* ---- giving up ---- */

void cvy_device_give_up(struct cvy_device *d, int err, int rank, uint32_t epoch, const char *format, ...)
{
	struct cvy_event ev = { .kind = CVY_EV_FROZE_NOT, .rank = -1, .epoch = d->epoch, .err = COVEY_ERR_FENCED };
	char why[256];
	va_list ap;

	va_start(ap, format);
	vsnprintf(why, sizeof(why), format, ap);
	va_end(ap);
	cvy_fail(d->box, err, rank, epoch, "%s", why);
	ev.text = why;
	d->given_up = 1;
	cvy_post(&d->agent, &ev);
}

void cvy_device_broken(struct cvy_device *d, const char *what)
{
	cvy_error("device", "rank %d, epoch %u: %s: %s", d->rank, d->epoch, what, d->ops->why(d->gpu));
	cvy_device_give_up(d, COVEY_ERR_IO, d->rank, d->epoch, "%s: %s", what, d->ops->why(d->gpu));
}

/* ---- open ---- */

/* The library is beside this one, or on the loader's path. */
static void *open_library(char *why, size_t bytes)
{
	char path[4096];
	Dl_info self;
	void *library = NULL;

	if (dladdr((const void *)(uintptr_t)&cvy_device_open, &self) && self.dli_fname) {
		const char *slash = strrchr(self.dli_fname, '/');
		int n = slash ? (int)(slash - self.dli_fname) + 1 : 0;

		snprintf(path, sizeof(path), "%.*s" CVY_GPU_LIBRARY, n, self.dli_fname);
		library = n ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	}
	if (!library)
		library = dlopen(CVY_GPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		snprintf(why, bytes, "%s", dlerror());
	return library;
}

/* Why the library cannot be used; @why: what is known without it. */
static void other_library(const struct cvy_gpu_ops *ops, char *why, size_t bytes)
{
	if (ops && (ops->abi & 0xffff) == CVY_GPU_ABI_VERSION)
		snprintf(why, bytes, "it was built for %u ranks and libcovey for %d: COVEY_DEVICE_RANKS must be alike",
			 ops->abi >> 16, CVY_GPU_RANKS);
	else if (ops)
		snprintf(why, bytes, "it is of another version");
}

/* The launchers' variable for "the n-th process of this host". */
static const char *local_rank(void)
{
	static const char *const names[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
					     "SLURM_LOCALID" };
	const char *text = NULL;

	for (size_t i = 0; !text && i < sizeof(names) / sizeof(names[0]); i++)
		text = getenv(names[i]);
	return text;
}

/* The number of the device, -1: none is asked for. */
static int device_number(const struct cvy_device_args *args, int *number)
{
	const char *text = args->config->device;
	char *end;
	long n;

	*number = -1;
	if (!text[0] || !strcmp(text, "none"))
		return 0;
	if (!strcmp(text, "local"))
		text = local_rank();
	if (!text)
		return cvy_fail(args->box, COVEY_ERR_INVAL, -1, 0,
				"device: local needs LOCAL_RANK or the like from a launcher; or name a number");
	n = strtol(text, &end, 10);
	if (end == text || *end || n < 0 || n > 1023)
		return cvy_fail(args->box, COVEY_ERR_INVAL, -1, 0,
				"device: %s is wrong: it must be a number from 0 to 1023, local or none", text);
	*number = (int)n;
	return 0;
}

/* The device itself. Logs it and how others map its memory, as a warning if that is not the usual way. */
static int open_gpu(struct cvy_device *d, const struct cvy_config *config, int number)
{
	int peers = config->world > 0 && config->world <= CVY_GPU_RANKS ? config->world - 1 : PEERS;
	struct cvy_gpu_args args = { number, CVY_DEVICE_LATE_MS, config->device_memory, peers };
	char why[300] = "";
	int err = d->ops->open(&args, &d->gpu, why, sizeof(why));

	if (err)
		return cvy_fail(d->box, err, -1, 0, "device: %s", why);
	d->mapped = d->ops->mapped(d->gpu);
	if (d->ops->memory(d->gpu) == COVEY_DEVICE_MEMORY_IPC && config->device_memory != COVEY_DEVICE_MEMORY_IPC)
		cvy_warn("device", "%s", d->ops->describe(d->gpu));
	else
		cvy_info("device", "%s", d->ops->describe(d->gpu));
	return 0;
}

static int open_parts(struct cvy_device *d, const struct cvy_config *config)
{
	struct cvy_gpu_scope had;
	int err;

	cvy_device_enter(d, &had);
	err = cvy_device_queues_open(d, config);
	if (!err)
		err = cvy_device_window_open(d, config->device_window_bytes);
	return cvy_device_leave(d, &had, err);
}

int cvy_device_open(const struct cvy_device_args *args, struct cvy_device **out)
{
	struct cvy_device *d;
	char why[300] = "";
	int number, err = device_number(args, &number);

	*out = NULL;
	if (err || number < 0)
		return err;
	d = calloc(1, sizeof(*d));
	if (!d)
		return cvy_fail(args->box, COVEY_ERR_NOMEM, -1, 0, "no memory for a device");
	d->loop = args->loop;
	d->box = args->box;
	d->send = args->send;
	d->send_ctx = args->send_ctx;
	d->agent = args->sink;
	d->window_fd = -1;
	d->join_ms = args->config->join_ms;
	pthread_mutex_init(&d->lock, NULL);
	cvy_device_drain_init(d);
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		d->peer[r].fd = d->peer[r].old_fd = -1;
	d->library = open_library(why, sizeof(why));
	d->ops = d->library ? dlsym(d->library, CVY_GPU_SYMBOL) : NULL;
	d->ep = d->ops ? dlsym(d->library, CVY_GPU_EP_SYMBOL) : NULL;
	d->message = d->ops ? dlsym(d->library, CVY_GPU_MESSAGE_SYMBOL) : NULL;
	if (!d->ep || !d->message || d->ops->abi != CVY_GPU_ABI) {
		other_library(d->ops, why, sizeof(why));
		err = cvy_fail(args->box, COVEY_ERR_UNSUPPORTED, -1, 0, "device: no usable libcovey_cuda: %s", why);
		cvy_device_close(d);
		return err;
	}
	d->late_evict = args->config->late == COVEY_LATE_EVICT;
	err = open_gpu(d, args->config, number);
	if (!err)
		err = open_parts(d, args->config);
	if (err) {
		cvy_device_close(d);
		return err;
	}
	*out = d;
	return 0;
}

/* Launched kernels push to nobody from here on. */
static void close_parts(struct cvy_device *d)
{
	struct cvy_gpu_scope had;

	cvy_device_enter(d, &had);
	if (d->drain.begun) /* it waits for kernels that nothing else ends */
		cvy_device_stop(d, COVEY_ERR_CLOSED);
	cvy_device_drain_end(d);
	cvy_device_queues_close(d);
	cvy_device_stop(d, COVEY_ERR_CLOSED);
	cvy_device_leave(d, &had, 0);
}

void cvy_device_close(struct cvy_device *d)
{
	if (!d)
		return;
	for (int r = 0; r < CVY_GPU_RANKS; r++) {
		if (d->peer[r].fd >= 0)
			close(d->peer[r].fd);
		if (d->peer[r].old_fd >= 0)
			close(d->peer[r].old_fd);
	}
	if (d->gpu)
		close_parts(d);
	cvy_device_window_close(d); /* descriptors are closed before their memory */
	if (d->gpu)
		d->ops->close(d->gpu);
	pthread_mutex_destroy(&d->lock);
	cvy_view_free(d->view);
	cvy_device_forget_packets(d);
	if (d->library)
		dlclose(d->library);
	free(d);
}

void cvy_device_identity(struct cvy_device *d, const struct cvy_identity *id)
{
	if (d->inc && d->inc != id->inc)
		cvy_device_begin_anew(d);
	d->rank = id->rank;
	d->leaving.behind = -1;
	d->inc = id->inc;
}

/* ---- calls ---- */

int covey_device_max_ranks(void)
{
	return CVY_GPU_RANKS;
}

int cvy_device_holds(struct cvy_device *d, const void *at)
{
	return d && at && d->ops->is_device(d->gpu, at);
}

/* The call is launched: fills in the known part of the result. */
static void launched(struct cvy_device *d, int size, struct covey_result *result)
{
	if (!result)
		return;
	memset(result, 0, sizeof(*result));
	result->epoch = d->epoch;
	result->size = size;
	result->peer = -1;
	pthread_mutex_lock(&d->lock);
	cvy_device_tell_mask(&result->mask, d->contributors);
	pthread_mutex_unlock(&d->lock);
}

/* Between the two phases, slots hold the data of the first. */
int cvy_device_between_phases(struct cvy_device *d)
{
	if (!d->sending)
		return 0;
	return cvy_fail(d->box, COVEY_ERR_INVAL, -1, 0,
			"a dispatch or combine on the device was sent and not received");
}

/* Bytes of the inputs that the results of an alltoall would overwrite before all have them; 0: none. */
static uint64_t overwritten(const struct cvy_gpu_call *call)
{
	const struct cvy_gpu_uneven *u = (const struct cvy_gpu_uneven *)call;
	uint64_t end = 0;

	if (call->send != call->recv || (call->kind != CVY_GPU_ALLTOALL && call->kind != CVY_GPU_ALLTOALLV))
		return 0;
	if (call->kind == CVY_GPU_ALLTOALL)
		return call->bytes * (uint64_t)call->size;
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		if (u->send[r] && u->send_at[r] + u->send[r] > end)
			end = u->send_at[r] + u->send[r];
	return end;
}

static int launch(struct cvy_device *d, struct cvy_gpu_call *call, struct CUstream_st *stream)
{
	const uint64_t aside = overwritten(call);
	int err;

	CVY_DEVICE_DO(d, err,
		      aside ? d->ops->launch_aside(d->gpu, call, aside, stream) : d->ops->launch(d->gpu, call, stream));
	return cvy_device_tells(d, err);
}

int cvy_device_run(struct cvy_device *d, struct cvy_gpu_call *call, struct CUstream_st *stream,
		   struct covey_result *result)
{
	int err = __atomic_load_n(&d->ended, __ATOMIC_ACQUIRE);

	if (!err)
		err = cvy_device_between_phases(d);
	if (err)
		return err;
	call->rank = d->rank;
	cvy_gpu_shape(call);
	call->levels = call->levels && cvy_device_takes_levels(d);
	err = launch(d, call, stream);
	if (!err)
		launched(d, call->size, result);
	return err;
}

int cvy_device_ep_state(struct cvy_device *d, const struct cvy_ep_tables *tables, size_t behind,
			struct cvy_ep_state **state)
{
	int err;

	CVY_DEVICE_DO(d, err, d->ep->state(d->gpu, tables, behind, state));
	return cvy_device_tells(d, err);
}

void cvy_device_ep_free(struct cvy_device *d, struct cvy_ep_state *state, size_t behind)
{
	if (state)
		d->ep->state_free(d->gpu, state, behind);
}

static int ep_launch(struct cvy_device *d, struct cvy_ep_args *args, const struct cvy_ep_beside *beside,
		     struct CUstream_st *stream)
{
	int err = 0;

	if (beside && beside->masking.mask && args->phases & CVY_EP_SEND)
		err = d->ep->mask(d->gpu, &beside->masking, stream);
	if (!err)
		err = d->ep->launch(d->gpu, args, stream);
	if (!err && beside && cvy_ep_has_outputs(&beside->outputs) && args->phases & CVY_EP_RECV)
		err = d->ep->outputs(d->gpu, &beside->outputs, stream);
	return err;
}

int cvy_device_ep_run(struct cvy_device *d, struct cvy_ep_args *args, const struct cvy_ep_beside *beside,
		      struct CUstream_st *stream, struct covey_result *result)
{
	int err = __atomic_load_n(&d->ended, __ATOMIC_ACQUIRE);

	if (!err && args->phases != CVY_EP_RECV)
		err = cvy_device_between_phases(d);
	if (err)
		return err;
	args->call.rank = d->rank;
	CVY_DEVICE_DO(d, err, ep_launch(d, args, beside, stream));
	if (err)
		return cvy_device_tells(d, err);
	d->sending = args->phases == CVY_EP_SEND;
	launched(d, args->call.size, result);
	return 0;
}

const void *cvy_device_status(struct cvy_device *d)
{
	return d->ops->status(d->gpu);
}

/* @failure: of a message, its code, peer and tag */
static int read_last(struct cvy_device *d, struct cvy_gpu_status *last, uint64_t *failure)
{
	struct cvy_gpu_scope had;
	int err;

	cvy_device_enter(d, &had);
	err = d->ops->status_read(d->gpu, last);
	if (!err)
		err = d->message->failure(d->gpu, failure);
	return cvy_device_leave(d, &had, err);
}

int cvy_device_result(struct cvy_device *d, int size, struct covey_result *result)
{
	struct cvy_gpu_status last;
	uint64_t failure = 0;
	int err = read_last(d, &last, &failure);

	if (err)
		return cvy_device_tells(d, err);
	memset(result, 0, sizeof(*result));
	result->epoch = last.epoch;
	result->size = size;
	result->peer = -1;
	if (failure) {
		result->status = -(int)(failure & 0xff);
		result->peer = (int)(failure >> 16 & 0xff);
		result->tag = (int)(int32_t)(failure >> 32);
		return 0;
	}
	result->status = last.status;
	result->seq = last.op;
	cvy_device_tell_contributors(&result->mask, &last);
	return 0;
}
