/* SPDX-License-Identifier: Apache-2.0 */
/* hosts.c: operations in two levels */
#ifndef CVY_HOSTS_H
#define CVY_HOSTS_H

#include "engine_state.h"

int cvy_hosts_build(struct cvy_set *set); /* from set->host: 0 or NOMEM */
void cvy_hosts_clear(struct cvy_hosts *hosts);
/* In an operation that is not flat, does @round (3: the end of a chain) wait for the k-th source? */
int cvy_hosts_needs(const struct cvy_engine *e, const struct cvy_op *op, int k, int round);
void cvy_hosts_signal(struct cvy_engine *e, const struct cvy_op *op, const struct cvy_line *line, int round);
void cvy_hosts_pass_on(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line); /* second round */
/* Do the slots that tick i is read from still hold it? */
int cvy_hosts_stand(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i);
size_t cvy_hosts_used(const struct cvy_engine *e, const struct cvy_op *op); /* bytes of the second half of a slot */

#endif
