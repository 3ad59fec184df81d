/* SPDX-License-Identifier: Apache-2.0 */
/* The page and file of the flight recorder (flight.h), and the handle's writes into it. NULL page: "not recorded". */
#ifndef CVY_RECORDER_H
#define CVY_RECORDER_H

#include <sys/stat.h>

#include "config.h"
#include "flight.h"
#include "view.h"

struct cvy_recorder; /* the page and the file behind it */

/* NULL: it cannot be made, which is logged; the group works without it. */
struct cvy_recorder *cvy_recorder_open(const struct cvy_config *config, const char *host,
				       const char *(*kind_name)(unsigned kind)); /* NULL: there is no such kind */
void cvy_recorder_close(struct cvy_recorder *recorder);				 /* removes its file; NULL is fine */
struct cvy_flight *cvy_recorder_page(struct cvy_recorder *recorder);

void cvy_unlink_own(const char *path, const struct stat *own); /* if @path is still that file, and not another's */

/* Agent's thread. */
void cvy_flight_identity(struct cvy_flight *flight, int rank, uint64_t inc);
void cvy_flight_event(struct cvy_flight *flight, const struct covey_event *event);
void cvy_flight_view(struct cvy_flight *flight, const struct cvy_view *view, int active);

/* One writer at a time, read by others: plain code on x86. */
static inline void cvy_flight_add(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

#endif
