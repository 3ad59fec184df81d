/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of chain.c for hosts.c and allreduce. */
#ifndef CVY_CHAIN_H
#define CVY_CHAIN_H

#include "op.h"

void cvy_chain_fold(struct cvy_engine *e, struct cvy_op *op, uint64_t i);
void cvy_chain_pass_on(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line);
void cvy_chain_signal(struct cvy_engine *e, const struct cvy_line *line, int round);
int cvy_chain_needs(const struct cvy_hosts *h, int k, int round);
void cvy_chain_result(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out);

#endif
