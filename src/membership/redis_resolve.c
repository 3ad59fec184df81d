/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of hosts. getaddrinfo() has no bound, so a helper thread waits for it. The client that asked may be closed
 * before it returns.
 */
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "process.h"
#include "redis.h"

struct resolve { /* shared with the helper thread; the last user frees it */
	pthread_mutex_t lock;
	struct cvy_loop *loop; /* NULL: nobody waits for the result */
	struct redis *redis;   /* loop's thread only */
	cvy_redis_resolved *then;
	char host[256];
	struct cvy_redis_addresses to;
	int err;
};

static void resolve_free(struct resolve *job)
{
	pthread_mutex_destroy(&job->lock);
	free(job);
}

static void resolved(void *ctx, void *arg)
{
	struct resolve *job = arg;
	struct redis *r = job->redis;
	char why[200];

	(void)ctx;
	pthread_mutex_lock(&job->lock); /* the helper may still hold it */
	pthread_mutex_unlock(&job->lock);
	if (r) {
		r->resolve = NULL;
		snprintf(why, sizeof(why), "cannot resolve %.100s: %s", job->host, gai_strerror(job->err));
		job->then(r, &job->to, job->err ? why : NULL);
	}
	resolve_free(job);
}

static int look_up(const char *host, int flags, struct cvy_redis_addresses *to)
{
	struct addrinfo hint = { .ai_socktype = SOCK_STREAM, .ai_flags = flags }, *list;
	int err = getaddrinfo(host, NULL, &hint, &list);

	memset(to, 0, sizeof(*to));
	if (err)
		return err;
	for (struct addrinfo *a = list; a && to->count < CVY_REDIS_ADDRESSES; a = a->ai_next) {
		err = getnameinfo(a->ai_addr, a->ai_addrlen, to->ip[to->count], sizeof(to->ip[0]), NULL, 0,
				  NI_NUMERICHOST);
		to->count += !err;
	}
	freeaddrinfo(list);
	return to->count ? 0 : err;
}

static void *resolver(void *arg)
{
	struct resolve *job = arg;
	int alone;

	job->err = look_up(job->host, 0, &job->to);
	pthread_mutex_lock(&job->lock);
	alone = !job->loop || cvy_loop_post(job->loop, resolved, NULL, job);
	if (alone)
		job->redis = NULL;
	pthread_mutex_unlock(&job->lock);
	if (alone)
		resolve_free(job);
	return NULL;
}

static int resolve_start(struct redis *r, const char *host, cvy_redis_resolved *then)
{
	struct resolve *job = calloc(1, sizeof(*job));
	pthread_t thread;

	if (!job)
		return COVEY_ERR_NOMEM;
	pthread_mutex_init(&job->lock, NULL);
	job->loop = r->loop;
	job->redis = r;
	job->then = then;
	snprintf(job->host, sizeof(job->host), "%s", host);
	r->resolve = job;
	if (cvy_thread_start(&thread, resolver, job)) {
		r->resolve = NULL;
		resolve_free(job);
		return COVEY_ERR_NOMEM;
	}
	pthread_detach(thread);
	return 0;
}

void cvy_redis_resolve(struct redis *r, const char *host, cvy_redis_resolved *then)
{
	struct cvy_redis_addresses to;

	if (look_up(host, AI_NUMERICHOST, &to) == 0)
		then(r, &to, NULL);
	else if (resolve_start(r, host, then))
		then(r, NULL, "no thread to resolve the store's host");
}

void cvy_redis_resolve_drop(struct redis *r)
{
	if (!r->resolve)
		return;
	pthread_mutex_lock(&r->resolve->lock);
	r->resolve->loop = NULL;
	r->resolve->redis = NULL;
	pthread_mutex_unlock(&r->resolve->lock);
	r->resolve = NULL;
}
