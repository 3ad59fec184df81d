/* SPDX-License-Identifier: Apache-2.0 */
/* A member's device: opened with the group, and called (device.h). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device_state.h"
#include "log.h"
#include "shape.h"

#define PARK_MS 60000	/* a kernel waits for a verdict */
#define CHANGE_LOOKS 20 /* milliseconds, from one wish for a change to the next */

/* ---- open ---- */

/* The library stands beside this one, or where the loader finds it. */
static void *open_library(char *why, size_t bytes)
{
	char path[4096];
	Dl_info self;
	void *library = NULL;

	if (dladdr((const void *)(uintptr_t)&cvy_device_open, &self) && self.dli_fname) {
		const char *slash = strrchr(self.dli_fname, '/');
		int n = slash ? (int)(slash - self.dli_fname) + 1 : 0;

		snprintf(path, sizeof(path), "%.*slibcovey_cuda.so.0", n, self.dli_fname);
		library = n ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	}
	if (!library)
		library = dlopen("libcovey_cuda.so.0", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		snprintf(why, bytes, "%s", dlerror());
	return library;
}

/* The launchers' word for "the n-th process of this host". */
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
		return cvy_fail(args->box, COVEY_ERR_INVAL, -1, 0, "device: %s is neither a number nor local nor none",
				text);
	*number = (int)n;
	return 0;
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
		return COVEY_ERR_NOMEM;
	d->loop = args->loop;
	d->box = args->box;
	d->send = args->send;
	d->send_ctx = args->send_ctx;
	d->agent = args->sink;
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		d->peer[r].fd = -1;
	d->library = open_library(why, sizeof(why));
	d->ops = d->library ? dlsym(d->library, CVY_GPU_SYMBOL) : NULL;
	if (!d->ops || d->ops->abi != CVY_GPU_ABI) {
		err = cvy_fail(args->box, COVEY_ERR_UNSUPPORTED, -1, 0, "device: no usable libcovey_cuda: %s",
			       d->ops ? "it is of another version" : why);
		cvy_device_close(d);
		return err;
	}
	err = d->ops->open(number, CVY_DEVICE_LATE_MS, PARK_MS, &d->gpu, why, sizeof(why));
	if (err) {
		cvy_fail(args->box, err, -1, 0, "device: %s", why);
		cvy_device_close(d);
		return err;
	}
	cvy_info("device", "%s", d->ops->describe(d->gpu));
	*out = d;
	return 0;
}

void cvy_device_close(struct cvy_device *d)
{
	if (!d)
		return;
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		if (d->peer[r].fd >= 0)
			close(d->peer[r].fd);
	if (d->gpu)
		d->ops->close(d->gpu);
	cvy_view_free(d->view);
	if (d->library)
		dlclose(d->library);
	free(d);
}

void cvy_device_identity(struct cvy_device *d, const struct cvy_identity *id)
{
	d->rank = id->rank;
}

/* ---- calls ---- */

int cvy_device_holds(struct cvy_device *d, const void *at)
{
	return d && at && d->ops->is_device(at);
}

int cvy_device_run(struct cvy_device *d, struct cvy_gpu_call *call, struct CUstream_st *stream,
		   struct covey_result *result)
{
	int err = __atomic_load_n(&d->ended, __ATOMIC_ACQUIRE);

	if (err)
		return err;
	call->rank = d->rank;
	cvy_gpu_shape(call);
	err = d->ops->launch(d->gpu, call, stream);
	if (err)
		return cvy_fail(d->box, err, d->rank, d->epoch, "%s", d->ops->why(d->gpu));
	if (result) {
		memset(result, 0, sizeof(*result));
		result->epoch = d->epoch;
		result->size = call->size;
		result->peer = -1;
		result->mask.word[0] = __atomic_load_n(&d->mask, __ATOMIC_ACQUIRE);
	}
	return 0;
}

static void want_change(void *ctx, void *arg)
{
	struct cvy_device *d = ctx;
	struct cvy_event ev = {
		.kind = CVY_EV_WANT_CHANGE, .rank = -1, .epoch = d->epoch, .text = "devices take a rank in"
	};

	(void)arg;
	if (!d->frozen && !d->freezing)
		cvy_post(&d->agent, &ev);
}

int cvy_device_admit(struct cvy_device *d, const struct covey_mask *outcome, int joiner)
{
	uint32_t wanted = cvy_device_mask(outcome);
	int err = 0;

	if (!joiner && !(wanted & ~__atomic_load_n(&d->mask, __ATOMIC_ACQUIRE)))
		return 0;
	if (!joiner)
		err = d->ops->synchronise(d->gpu);
	if (err)
		return cvy_fail(d->box, err, d->rank, d->epoch, "%s", d->ops->why(d->gpu));
	__atomic_store_n(&d->drained, 1, __ATOMIC_RELEASE);
	for (int i = 0;; i++) {
		uint32_t mask = __atomic_load_n(&d->mask, __ATOMIC_ACQUIRE);
		uint32_t lacking = wanted & __atomic_load_n(&d->members, __ATOMIC_ACQUIRE) & ~mask;
		struct timespec nap = { 0, 1000000 };

		err = __atomic_load_n(&d->ended, __ATOMIC_ACQUIRE);
		if (err || (joiner ? mask != 0 : !lacking))
			break;
		if (i % CHANGE_LOOKS ==
		    CHANGE_LOOKS / 2) /* the change that made them voters came before all had drained */
			cvy_loop_post(d->loop, want_change, d, NULL);
		nanosleep(&nap, NULL);
	}
	__atomic_store_n(&d->drained, 0, __ATOMIC_RELEASE);
	return err;
}

const void *cvy_device_status(struct cvy_device *d)
{
	return d->ops->status(d->gpu);
}

int cvy_device_status_read(struct cvy_device *d, void *to, size_t bytes)
{
	struct cvy_gpu_status status;
	int err = d->ops->status_read(d->gpu, &status);

	memcpy(to, &status, bytes < sizeof(status) ? bytes : sizeof(status));
	return err ? cvy_fail(d->box, err, d->rank, d->epoch, "%s", d->ops->why(d->gpu)) : 0;
}
