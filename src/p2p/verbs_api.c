/* SPDX-License-Identifier: Apache-2.0 */
/* Opens libibverbs and librdmacm when a group first needs them: a machine without them runs everything else. */
#include "verbs_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define VERBS_LIBRARY "libibverbs.so.1"
#define CM_LIBRARY "librdmacm.so.1"

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return ibv_post_send(qp, wr, bad);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return ibv_post_recv(qp, wr, bad);
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	return ibv_poll_cq(cq, n, wc);
}

static int notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return ibv_req_notify_cq(cq, solicited_only);
}

/* C has no cast from an object pointer to a function pointer; POSIX promises that the bits are the same. */
static int find(void *library, const char *name, void *to)
{
	void *symbol = dlsym(library, name);

	memcpy(to, &symbol, sizeof(symbol));
	return symbol != NULL;
}

static const char *fill(struct cvy_verbs_api *api, void *verbs, void *cm)
{
	const char *missing = NULL;

	(void)cm;
#define VERBS verbs
#define CM cm
#define FIND(library, type, name, args) \
	if (!missing && !find(library, #name, &api->name)) \
		missing = #name;
	CVY_VERBS_CALLS(FIND)
#undef FIND
#undef VERBS
#undef CM
	api->post_send = post_send;
	api->post_recv = post_recv;
	api->poll_cq = poll_cq;
	api->notify_cq = notify_cq;
	return missing;
}

const struct cvy_verbs_api *cvy_verbs_load(char *why, size_t bytes)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct cvy_verbs_api table;
	static int loaded;
	const char *missing;
	void *verbs, *cm;

	pthread_mutex_lock(&lock);
	if (!loaded) {
		verbs = dlopen(VERBS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
		cm = verbs ? dlopen(CM_LIBRARY, RTLD_NOW | RTLD_LOCAL) : NULL;
		missing = cm ? fill(&table, verbs, cm) : NULL;
		loaded = cm && !missing;
		if (missing)
			snprintf(why, bytes, "%s and %s lack %s", VERBS_LIBRARY, CM_LIBRARY, missing);
		else if (!cm) /* the loader's text names the file */
			snprintf(why, bytes, "no RDMA library: %s", dlerror());
	}
	pthread_mutex_unlock(&lock);
	return loaded ? &table : NULL;
}
