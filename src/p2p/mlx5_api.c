/* SPDX-License-Identifier: Apache-2.0 */
/* Opens two libraries and finds their calls. Each is opened once and never closed: threads of theirs may live on. */
#include <dlfcn.h>
#include <pthread.h>

#include "mlx5_api.h"

static struct cvy_mlx5_api api;
static const char *missing;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void *library, const char *name, void *to)
{
	*(void **)to = dlsym(library, name);
	if (!*(void **)to && !missing)
		missing = name;
}

static void load(void)
{
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW), *mlx5 = dlopen("libmlx5.so.1", RTLD_NOW);

	if (!verbs || !mlx5) {
		missing = verbs ? "libmlx5.so.1 (package ibverbs-providers)" : "libibverbs.so.1 (package libibverbs1)";
		return;
	}
#define X(name) find(verbs, #name, (void *)&api.name##_);
	CVY_VERBS_CALLS(X)
#undef X
#define X(name) find(mlx5, #name, (void *)&api.name##_);
	CVY_MLX5_CALLS(X)
#undef X
}

const struct cvy_mlx5_api *cvy_mlx5_api(struct cvy_errbox *box)
{
	pthread_once(&once, load);
	if (!missing)
		return &api;
	cvy_fail(box, COVEY_ERR_UNSUPPORTED, -1, 0, "no mlx5 queues: %s is missing here", missing);
	return NULL;
}
