/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder's page, and the agent's writes into it. */
#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "process.h"

struct cvy_recorder {
	struct cvy_flight *page;
	int fd;
	char *path; /* of the file, removed at an orderly end; NULL: a memfd */
};

static int open_file(struct cvy_recorder *r, const struct cvy_config *config)
{
	struct flock whole = { .l_type = F_WRLCK };
	int fd;

	if (!*config->flight)
		return memfd_create(CVY_FLIGHT_NAME, MFD_CLOEXEC);
	if (asprintf(&r->path, "%s/%s.%d.XXXXXX" CVY_FLIGHT_END, config->flight, config->group, (int)getpid()) < 0) {
		r->path = NULL;
		return -1;
	}
	/* A new file: containers that share the directory have the same process numbers, and so has one that restarts. */
	fd = mkostemps(r->path, sizeof(CVY_FLIGHT_END) - 1, O_CLOEXEC);
	if (fd < 0)
		return -1;
	fchmod(fd, 0600);	    /* whatever the umask: the user of the job reads it after the process's death */
	fcntl(fd, F_SETLK, &whole); /* shows readers in any namespace that the process lives */
	return fd;
}

static void fill(struct cvy_flight *page, const struct cvy_config *config, const char *host,
		 const char *(*kind_name)(unsigned kind))
{
	page->pid = (int32_t)getpid();
	page->rank = -1;
	snprintf(page->group, sizeof(page->group), "%s", config->group);
	snprintf(page->host, sizeof(page->host), "%s", host ? host : "");
	for (unsigned kind = 0; kind < CVY_FLIGHT_KINDS; kind++)
		snprintf(page->kind[kind], sizeof(page->kind[kind]), "%s", kind_name(kind) ? kind_name(kind) : "");
	page->clock_ns = cvy_now_ns();
	page->awaited = -1;
	page->store_up = 1; /* a member with an identity has spoken to it */
	__atomic_store_n(&page->magic, CVY_FLIGHT_MAGIC, __ATOMIC_RELEASE);
}

struct cvy_recorder *cvy_recorder_open(const struct cvy_config *config, const char *host,
				       const char *(*kind_name)(unsigned kind))
{
	struct cvy_recorder *r = calloc(1, sizeof(*r));
	const char *what = "no memory";

	if (!r)
		goto fail;
	what = "cannot make its file";
	r->fd = open_file(r, config);
	if (r->fd < 0)
		goto fail;
	/* All of it at once: a write into a hole of a full file system would kill this process. */
	what = "no room";
	errno = cvy_file_reserve(r->fd, sizeof(*r->page));
	if (errno)
		goto fail;
	what = "cannot map it";
	r->page = mmap(NULL, sizeof(*r->page), PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
	if (r->page == MAP_FAILED) {
		r->page = NULL;
		goto fail;
	}
	fill(r->page, config, host, kind_name);
	return r;
fail:
	cvy_warn("flight", "%s: %s; this member keeps no record", what, strerror(errno));
	cvy_recorder_close(r);
	return NULL;
}

void cvy_unlink_own(const char *path, const struct stat *own)
{
	struct stat there;

	if (!lstat(path, &there) && there.st_dev == own->st_dev && there.st_ino == own->st_ino)
		unlink(path);
}

void cvy_recorder_close(struct cvy_recorder *r)
{
	struct stat own;

	if (!r)
		return;
	if (r->page)
		munmap(r->page, sizeof(*r->page));
	if (r->path && r->fd >= 0 && !fstat(r->fd, &own))
		cvy_unlink_own(r->path, &own);
	if (r->fd >= 0)
		close(r->fd);
	free(r->path);
	free(r);
}

struct cvy_flight *cvy_recorder_page(struct cvy_recorder *r)
{
	return r ? r->page : NULL;
}

void cvy_flight_identity(struct cvy_flight *flight, int rank, uint64_t inc)
{
	if (!flight)
		return;
	__atomic_store_n(&flight->inc, inc, __ATOMIC_RELAXED);
	__atomic_store_n(&flight->rank, rank, __ATOMIC_RELEASE);
}

void cvy_flight_event(struct cvy_flight *flight, const struct covey_event *event)
{
	struct cvy_flight_event *to;

	if (!flight)
		return;
	to = &flight->event[flight->events % CVY_FLIGHT_EVENTS];
	to->time_ns = event->time_ns;
	to->kind = event->kind;
	to->rank = event->rank;
	to->epoch = event->epoch;
	snprintf(to->cause, sizeof(to->cause), "%.103s", event->cause);
	cvy_flight_add(&flight->views, event->kind == COVEY_EVENT_VIEW);
	cvy_flight_add(&flight->suspicions, event->kind == COVEY_EVENT_SUSPECT);
	cvy_flight_add(&flight->store_lost, event->kind == COVEY_EVENT_STORE_LOST);
	if (event->kind == COVEY_EVENT_STORE_LOST || event->kind == COVEY_EVENT_STORE_BACK)
		flight->store_up = event->kind == COVEY_EVENT_STORE_BACK;
	__atomic_store_n(&flight->events, flight->events + 1, __ATOMIC_RELEASE);
}

void cvy_flight_view(struct cvy_flight *flight, const struct cvy_view *view, int active)
{
	uint32_t members = 0, pending = 0;

	if (!flight)
		return;
	if (view) {
		CVY_MASK_EACH(r, &view->members)
		covey_mask_has(&view->pending, r) ? pending++ : members++;
		flight->epoch = view->epoch;
		flight->members = members;
		flight->pending = pending;
	}
	flight->active = (uint32_t)active;
}
