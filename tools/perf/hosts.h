/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts of a group as kernels of two hops know them. */
#ifndef PERF_HOSTS_H
#define PERF_HOSTS_H

#include "ep_hops.h"
#include "perf.h"

/* While all ranks are there. */
static inline struct cvy_ep_hosts perf_hosts_all(const struct perf_job *job)
{
	struct cvy_ep_hosts hosts = { .living = (uint32_t)((1ull << job->size) - 1) };

	for (int r = 0; r < job->size; r++)
		hosts.of[r] = cvy_ep_of_host(job->host, hosts.living, r);
	return hosts;
}

#endif
